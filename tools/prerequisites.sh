#!/bin/sh
# Lists all programs that this machine lacks, each with the Debian command that installs the program.
#
# Usage:   tools/prerequisites.sh demo|test     (PYTHON names the interpreter; default python3)
# Exit:    0 nothing is missing; 1 a program is missing
# Plain sh, because Python may be what is missing.
set -u

purpose=${1:-test}
python=${PYTHON:-python3}
missing=0

lacks() { # what, command
    [ "$missing" -eq 0 ] && echo "Missing on this machine:" >&2
    missing=1
    printf '  %-28s %s\n' "$1" "$2" >&2
}

have() { command -v "$1" >/dev/null 2>&1; }

java_major() { # 17 for 17.0.15, 8 for 1.8.0_392, 0 if the version is unknown
    java -version 2>&1 |
        sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | { read -r major _ && echo "$major" || echo 0; }
}

go_minor() { # 21 for go1.21.3, 0 if the version is unknown
    go version 2>/dev/null | sed -n 's/.*go1\.\([0-9][0-9]*\).*/\1/p' | { read -r minor _ && echo "$minor" || echo 0; }
}

if ! have "$python" || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    lacks "Python 3.11 or newer" "apt-get install python3 python3-venv    (or name one: make PYTHON=python3.12 …)"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    lacks "Python's venv" "apt-get install python3-venv"
fi
if ! have java || [ "$(java_major)" -lt 17 ]; then
    lacks "Java 17 or newer" "apt-get install openjdk-17-jre-headless"
fi
if ! have mvn; then
    lacks "Maven" "apt-get install maven"
fi
if [ "$purpose" = test ]; then
    if ! have go || [ "$(go_minor)" -lt 21 ]; then
        lacks "Go 1.21 or newer" "apt-get install golang-go    (Debian 12: apt-get install -t bookworm-backports golang-go)"
    fi
    for each in bash curl openssl; do
        have "$each" || lacks "$each" "apt-get install $each"
    done
    # for root, tools/bootstrap.py installs both
    if { ! have chromium || ! have chromedriver; } && { [ "$(id -u 2>/dev/null || echo 1)" -ne 0 ] || ! have apt-get; }; then
        lacks "Chromium and its driver" "apt-get install chromium chromium-driver"
    fi
    # with apt-get, tools/bootstrap.py unpacks these two below build
    if ! have apt-get && ! have faketime; then
        lacks "libfaketime" "apt-get install faketime"
    fi
    if ! have apt-get && ! have kcat; then
        lacks "kcat" "apt-get install kcat"
    fi
fi
exit "$missing"
