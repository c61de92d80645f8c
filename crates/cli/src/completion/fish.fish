function __ferrovirt_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] __complete -- $words 2>/dev/null)
    if contains -- ':files' $found
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c ferrovirt -f -a '(__ferrovirt_complete)'
