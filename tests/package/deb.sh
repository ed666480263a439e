#!/bin/sh
# Makes the Debian packages of a build, unpacks them into an empty root and uses them from there.
# Usage: tests/package/deb.sh BUILD_DIR CC [FLAGS]; answers 77 where dpkg's tools are missing.
set -eu
build=$1 cc=$2 flags=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/root
mkdir "$root"

(cd "$build" && cpack -B "$folder/packages") >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
for package in "$folder"/packages/*.deb; do
    name=$(dpkg-deb -f "$package" Package)
    # A package whose dependencies Debian does not have cannot be installed.
    dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/(.*//; s/|.*//' | while read -r needed; do
        case $needed in
        '' | libtessera*) ;;
        *) dpkg-query -W "$needed" >/dev/null || { echo "$name needs $needed"; exit 1; } ;;
        esac
    done
    dpkg-deb -x "$package" "$root"
    cmp "$here/../../LICENSE" "$root/usr/share/doc/$name/copyright"
    printf '%s: %s files\n' "$name" "$(dpkg-deb -c "$package" | grep -vc '/$')"
done
# What is built against the library must learn which package has it.
version=$(dpkg-deb -f "$folder"/packages/libtessera0.*.deb Version)
[ "$(dpkg-deb -I "$folder"/packages/libtessera0.*.deb shlibs)" = \
    "libtessera ${version%.*} libtessera${version%.*} (= $version)" ]
[ "$(find "$folder/packages" -maxdepth 1 -name '*.deb' | wc -l)" -eq 3 ]

libdir=$(dirname "$(find "$root" -name tessera.pc)")/..
export LD_LIBRARY_PATH="$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"$root/usr/bin/tessera" info >"$folder/info"
head -n 1 "$folder/info"
export PKG_CONFIG_PATH="$libdir/pkgconfig"
# shellcheck disable=SC2046,SC2086
$cc -std=c11 $flags "$here/use.c" $(pkg-config --cflags --libs tessera) -o "$folder/use"
"$folder/use"
