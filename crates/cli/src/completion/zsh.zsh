#compdef ferrovirt
_ferrovirt() {
    local -a found
    local line
    for line in "${(@f)$("${words[1]}" __complete -- "${(@)words[1,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == ":files" ]]; then
            _files
            return
        fi
        [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    _describe -V ferrovirt found
}
# Read by `source`, or by zsh itself from a directory of $fpath.
if [[ $funcstack[1] == _ferrovirt ]]; then
    _ferrovirt "$@"
else
    compdef _ferrovirt ferrovirt
fi
