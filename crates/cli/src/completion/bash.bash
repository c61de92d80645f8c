# shellcheck shell=bash
_ferrovirt() {
    local line="${COMP_LINE:0:COMP_POINT}" words=() current reply break
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]} - 1]}"
    # bash replaces what follows the last of these characters only.
    break="${current%"${current##*[=:@]}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r reply _; do
        if [[ $reply == ":files" ]]; then
            compopt -o default
            COMPREPLY=()
            return
        fi
        [[ $reply == "$current"* ]] && COMPREPLY+=("${reply#"$break"}")
    done < <("$1" __complete -- "${words[@]}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
}
complete -F _ferrovirt ferrovirt
