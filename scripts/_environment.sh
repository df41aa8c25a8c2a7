# Shared by demo, test and dev; POSIX sh, sourced with `root` set to the top of the clone.
#
# prepare GROUP   makes the environment in $ENVIRONMENT (.venv) hold the workspace and the
#                 dependency group: test (what the tests and the demo need) or dev (all tools).
#                 A stamp makes the second call return at once, without network.

ENVIRONMENT=${ENVIRONMENT:-.venv}
case $ENVIRONMENT in /*) ;; *) ENVIRONMENT=$root/$ENVIRONMENT ;; esac
FLOOR='3.11'

say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python $FLOOR or newer"
        printf '%s\n' "$PYTHON"
        return
    fi
    for name in python3.11 python3.12 python3.13 python3 python; do
        if new_enough "$name"; then
            printf '%s\n' "$name"
            return
        fi
    done
    fail "no Python $FLOOR or newer found" \
        "install one, or name it: PYTHON=/path/to/python3 $0"
}

# The text that decides what an environment holds: where it is, its Python, versions, metadata. Of
# the top pyproject.toml only the groups count, not the settings of tools.
fingerprint() {
    "$ENVIRONMENT/bin/python" - "$root" "$1" <<'PYTHON'
import hashlib, pathlib, sys, tomllib
root = pathlib.Path(sys.argv[1])
groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
paths = [root / name for name in ("constraints.txt", "workspace.txt")]
paths += sorted(root.glob("packages/*/pyproject.toml"))
digest = hashlib.sha256("\0".join([*sys.argv[1:], sys.version, repr(groups)]).encode())
for path in paths:
    digest.update(path.read_bytes())
print(digest.hexdigest())
PYTHON
}

is_current() {
    [ -f "$ENVIRONMENT/installed-$1" ] || return 1
    [ "$(cat "$ENVIRONMENT/installed-$1")" = "$(fingerprint "$1")" ]
}

version_of() { "$1" -c 'import sys; print(sys.version)'; }

# A usable environment runs, was made at this very place (scripts in it name their interpreter by
# its path), and has the Python that was asked for.
is_usable() {
    new_enough "$ENVIRONMENT/bin/python" || return 1
    [ "$(cat "$ENVIRONMENT/made-at" 2>/dev/null)" = "$ENVIRONMENT" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$ENVIRONMENT/bin/python")" ]
}

make_environment() {
    if [ -e "$ENVIRONMENT" ]; then
        [ -w "$ENVIRONMENT" ] || fail "$ENVIRONMENT belongs to another user" \
            "remove it, or set ENVIRONMENT=/another/folder"
        [ -f "$ENVIRONMENT/pyvenv.cfg" ] || [ -z "$(ls -A "$ENVIRONMENT")" ] || \
            fail "$ENVIRONMENT exists and is no virtual environment" "move it away first"
    fi
    python=$(find_python) || exit 1
    say "making $ENVIRONMENT with $("$python" --version)"
    "$python" -m venv --clear "$ENVIRONMENT" >&2 || \
        fail "$python cannot make virtual environments" \
            "on Debian and Ubuntu install the package python3-venv, then run $0 again"
    printf '%s\n' "$ENVIRONMENT" >"$ENVIRONMENT/made-at"
}

# Runs pip, shows one line per package and keeps the rest in a log.
run_pip() {
    log=$ENVIRONMENT/install.log
    failed=$ENVIRONMENT/install.failed
    rm -f "$failed"
    {
        PIP_ROOT_USER_ACTION=ignore "$ENVIRONMENT/bin/python" -m pip \
            --disable-pip-version-check --no-input install --progress-bar off \
            --constraint constraints.txt "$@" 2>&1 || : >"$failed"
    } | while IFS= read -r line; do
        printf '%s\n' "$line" >&3
        case $line in
            'Obtaining '* | 'Collecting '*) show_package "$line" ;;
            'Installing collected'*) printf '    ... installing\n' >&2 ;;
        esac
    done 3>"$log"
    [ ! -f "$failed" ] || fail_to_install
}

show_package() {
    name=${1#* }            # "Collecting psycopg>=3.2.10 (from ...)"
    name=${name%% (from *}
    name=${name##*/}        # "Obtaining file:///.../runledger-core (from ...)"
    printf '    %s\n' "${name%%[!A-Za-z0-9._-]*}" >&2
}

# The last lines of the log, without the addresses of indexes.
fail_to_install() {
    grep -v '^WARNING' "$log" | tail -n 15 | sed -e 's#[a-z+]*://[^ ,)]*#(index)#g' \
        -e "s#host='[^']*'#(index)#g" >&2
    fail "pip could not install everything; the lines above and $log tell why" \
        "the first run needs the network, later ones do not"
}

is_ready() { is_usable && { is_current "$1" || is_current dev; }; }

prepare() {
    cd "$root" || exit 1
    if is_ready "$1"; then
        return 0
    fi
    # Sessions of nox that run side by side must not install side by side.
    folder=$(dirname "$ENVIRONMENT")
    mkdir -p "$folder" && [ -w "$folder" ] || \
        fail "no right to write to $folder" "set ENVIRONMENT=/a/folder/of/yours"
    exec 9>"$ENVIRONMENT.lock"
    ! command -v flock >/dev/null || flock 9
    is_ready "$1" || install_workspace "$1"
    exec 9>&-
}

install_workspace() {
    is_usable || make_environment
    say "installing Runledger and what it needs (a minute on the first run, later runs skip this)"
    run_pip pip hatchling  # the pip of older Pythons knows no dependency groups
    run_pip --no-build-isolation --group "$1" --requirement workspace.txt
    fingerprint "$1" >"$ENVIRONMENT/installed-$1"
}
