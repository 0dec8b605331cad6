#!/usr/bin/env bash
# Sets up a checkout: system packages that are missing, .venv, and what one of three levels needs:
#
#     setup.sh demo    mongoq with Spark, a mongod, and what draws the report
#     setup.sh test    all extras, the test tools and a browser
#     setup.sh dev     linters, type checkers and documentation tools too (default)
#
# Safe to repeat; an interrupted run is repaired by the next one. PYTHON names the interpreter (default: python3).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

root="$(pwd -P)"
python="${PYTHON:-python3}"
venv=".venv"
level="${1:-dev}"
unfinished="$venv/.setup-unfinished"

# They would lead the new environment to packages outside it, or pip to install elsewhere.
unset PYTHONHOME PYTHONPATH PIP_PREFIX PIP_TARGET PIP_USER

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# A level brings those before it.
case "$level" in
    demo) levels=(demo) packages=(--editable '.[embedded,spark,demo,cli,web]') ;;
    test) levels=(demo test) packages=(--editable '.[all]' --group test) ;;
    dev) levels=(demo test dev) packages=(--editable '.[all]' --group dev) ;;
    *) fail "$level is no level; there are demo, test and dev" ;;
esac
stamp="$venv/.setup-$level"
readonly root python venv level unfinished levels packages stamp

# --- what the system provides ------------------------------------------------------------------

check_python() {
    command -v "$python" >/dev/null ||
        fail "$python was not found. Install Python 3.11 or later, or name one: make setup PYTHON=python3.12"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$python" --version 2>&1) is too old: mongoq needs Python 3.11 or later." \
            "Name another one: make setup PYTHON=python3.12"
}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# The package that brings venv: python3-venv for the system's own python3, else python3.X-venv.
venv_package() {
    local version='import sys; print("%d.%d" % sys.version_info[:2])' wanted
    wanted="$("$python" -c "$version")"
    if [[ "$(/usr/bin/python3 -c "$version" 2>/dev/null)" == "$wanted" ]]; then
        echo python3-venv
    else
        echo "python$wanted-venv"
    fi
}

# Only the mongod of the extra "embedded" needs libcurl, and that is for x86-64 Linux.
has_libcurl() {
    [[ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]] && return
    "$python" -c 'import ctypes; ctypes.CDLL("libcurl.so.4")' 2>/dev/null
}

# The major version of the Java that Spark would take; 0 when there is none.
java_major() {
    local java=java version
    [[ -n "${JAVA_HOME:-}" ]] && java="$JAVA_HOME/bin/java"
    version="$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)" || true
    version="${version#1.}" # 1.8 is Java 8
    version="${version%%[!0-9]*}"
    echo "${version:-0}"
}

has_java() { [[ "$(java_major)" -ge 17 ]]; }

# The tests of the dashboard drive a browser.
has_browser() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

missing_packages() {
    has_venv || venv_package
    has_libcurl || echo libcurl4
    # A JAVA_HOME that names an old Java wins over whatever apt installs.
    has_java || [[ -n "${JAVA_HOME:-}" ]] || echo default-jre-headless
    [[ "$level" == demo ]] || has_browser || printf '%s\n' chromium chromium-driver
}

# One by one: a package that is not to be had keeps no other from being installed.
apt_install() {
    local -a as_root=(env)
    local package
    command -v apt-get >/dev/null || return 0
    if [[ "$(id -u)" -ne 0 ]]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 0
        as_root=(sudo -n env)
    fi
    say "installing $* through apt"
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
    for package in "$@"; do
        "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
            apt-get install -qq -y --no-install-recommends "$package" >/dev/null || true
    done
}

how_to_install() {
    if command -v apt-get >/dev/null; then
        echo "    sudo apt-get update && sudo apt-get install -y $*"
    else
        echo "    install what these packages of Debian hold: $*"
    fi
}

check_system() {
    local -a missing
    mapfile -t missing < <(missing_packages)
    if [[ ${#missing[@]} -gt 0 ]]; then
        apt_install "${missing[@]}"
        mapfile -t missing < <(missing_packages)
    fi
    if ! has_venv || ! has_libcurl; then
        say "missing: ${missing[*]}. Run this line, then again what you ran:" >&2
        how_to_install "${missing[@]}" >&2
        exit 1
    fi
    if [[ "$level" != demo ]] && ! has_browser; then
        say "the tests of the dashboard need a browser; the rest works without."
        how_to_install chromium chromium-driver
    fi
    if ! has_java; then
        say "Spark needs Java 17 or later, and there is none; the rest works without."
        if [[ -n "${JAVA_HOME:-}" ]]; then
            say "JAVA_HOME is $JAVA_HOME: unset it, or let it name a Java that is new enough."
        elif command -v java >/dev/null; then
            how_to_install openjdk-17-jre-headless
        else
            how_to_install default-jre-headless
        fi
    fi
}

# --- the environment ---------------------------------------------------------------------------

# Whether .venv can be built upon: whole, in its place, and of the version asked for.
is_usable() {
    [[ -x "$venv/bin/python" && ! -e "$unfinished" ]] || return 1
    local written identity='import os, sys; print(os.path.realpath(sys.prefix), *sys.version_info[:2])'
    for written in "$venv"/.setup-{demo,test,dev}; do
        [[ ! -e "$written" || "$(cat "$written")" == "$root" ]] || return 1
    done
    [[ "$("$venv/bin/python" -c "import pip; $identity" 2>/dev/null)" == \
        "$root/$venv $("$python" -c 'import sys; print(*sys.version_info[:2])')" ]]
}

# uv downloads and unpacks side by side. It does not read pip's configuration, so pip is tried after it.
install_packages() {
    local -a pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
    local -a wanted=(--constraint constraints.txt --build-constraint constraints.txt "${packages[@]}")
    if "${pip[@]}" install -qq --constraint constraints.txt --only-binary uv uv &&
        "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" "${wanted[@]}"; then
        return 0
    fi
    say "uv cannot install them here; pip does, which takes longer"
    "${pip[@]}" install -qq --constraint constraints.txt --upgrade pip
    "${pip[@]}" install -qq "${wanted[@]}"
}

install() {
    if is_usable; then
        say "bringing $venv up to date"
    else
        say "creating $venv with $("$python" --version 2>&1)"
        rm -rf "$venv"
        "$python" -m venv "$venv"
    fi
    rm -f "$venv"/.setup-{demo,test,dev}
    touch "$unfinished"

    case "$level" in
        demo) say "installing mongoq, PySpark, MongoDB and matplotlib: about a minute the first time" ;;
        test) say "installing mongoq, all its extras and the test tools: one to two minutes the first time" ;;
        dev) say "installing mongoq, all its extras and the development tools: two minutes the first time" ;;
    esac
    install_packages
    [[ "$level" == demo ]] || unpack_nginx

    rm "$unfinished"
    local each
    for each in "${levels[@]}"; do
        printf '%s\n' "$root" >"$venv/.setup-$each"
    done
}

# The proxy of one test. Unpacked and not installed, because the package would start a server.
unpack_nginx() {
    command -v nginx >/dev/null && return 0
    [[ -x "$venv/nginx/usr/sbin/nginx" ]] && return 0
    local folder
    folder="$(mktemp -d)"
    if (cd "$folder" && apt-get download -qq nginx && dpkg-deb --extract nginx_*.deb nginx &&
        nginx/usr/sbin/nginx -v) >/dev/null 2>&1; then
        rm -rf "$venv/nginx"
        mv "$folder/nginx" "$venv/nginx"
    else
        say "the tests of the dashboard behind nginx need nginx; the rest works without."
    fi
    rm -rf "$folder"
}

# --- one at a time -----------------------------------------------------------------------------

is_fresh() {
    [[ -e "$stamp" && "$(cat "$stamp")" == "$root" && "$stamp" -nt pyproject.toml &&
        "$stamp" -nt constraints.txt && "$stamp" -nt scripts/setup.sh ]]
}

# Whatever an interrupted setup has left running holds the lock as well.
take_turn() {
    command -v flock >/dev/null || return 0
    exec 9<pyproject.toml
    flock --nonblock 9 && return 0
    say "another setup of this checkout is running; waiting for it"
    flock 9
    if is_fresh; then
        say "done"
        exit 0
    fi
}

check_python
take_turn
check_system
install
say "done after $SECONDS s"
