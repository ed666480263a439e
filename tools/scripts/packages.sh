# shellcheck shell=sh
# Debian packages for the scripts in tools/. To be sourced, by bash or sh:
#
#     . tools/scripts/packages.sh
#     packages_need cmake:cmake libpng-dev || exit
#
# packages_need NAME[:COMMAND]... makes sure that the packages are there. NAME:COMMAND is also
# content with a COMMAND on the PATH that came from elsewhere. What is missing is installed when
# that needs no question asked (root, or sudo without a password); otherwise the line to type is
# printed and the answer is 1. Where there is no dpkg nothing is checked: the build names what it
# lacks.

packages_missing() {
    for packages_item in "$@"; do
        packages_name=${packages_item%%:*}
        case $packages_item in
        *:*) command -v "${packages_item#*:}" >/dev/null 2>&1 && continue ;;
        esac
        # Double quotes would expand ${Status}; the trailing * is for several architectures.
        # shellcheck disable=SC2016
        case $(dpkg-query -W -f '${Status}' "$packages_name" 2>/dev/null) in
        'install ok installed'*) ;;
        *) printf ' %s' "$packages_name" ;;
        esac
    done
}

packages_need() {
    command -v dpkg-query >/dev/null 2>&1 || return 0
    packages_list=$(packages_missing "$@")
    [ -n "$packages_list" ] || return 0

    packages_sudo='sudo '
    [ "$(id -u)" -ne 0 ] || packages_sudo=
    packages_line="${packages_sudo}apt-get update && ${packages_sudo}apt-get install -y$packages_list"
    if [ -z "$packages_sudo" ] || sudo -n true 2>/dev/null; then
        echo "installing$packages_list" >&2
        if packages_log=$(DEBIAN_FRONTEND=noninteractive sh -c "$packages_line" 2>&1 </dev/null); then
            return 0
        fi
        printf '%s\n' "$packages_log" >&2
        echo 'That failed. Please install the packages by hand, then try again:' >&2
    else
        echo 'Packages are missing. Please install them, then try again:' >&2
    fi
    echo "    $packages_line" >&2
    return 1
}
