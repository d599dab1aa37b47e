#!/bin/sh
# Makes sure that programs which tests start are installed: those named as arguments, or all. Servers run on loopback, on
# free ports. As root on Debian and its relatives the programs are fetched, elsewhere one sentence says what to install.
set -eu
all="mosquitto mosquitto-clients chromium-headless-shell nats-server postgresql mariadb-server redis-server slapd ldap-utils nodejs npm iproute2 systemd libfaketime curl"
is_there() {
    case $1 in
        chromium-headless-shell)
            command -v chromium-headless-shell || command -v google-chrome || command -v chromium-browser ||
                { command -v chromium && ! apt-cache show chromium-headless-shell; } ;;
        mosquitto-clients) command -v mosquitto_pub ;;
        postgresql) command -v postgres || ls /usr/lib/postgresql/*/bin/postgres ;;
        mariadb-server) command -v mariadbd || ls /usr/sbin/mariadbd ;;
        ldap-utils) command -v ldapmodify ;;
        nodejs) command -v node ;;
        iproute2) command -v ip || ls /usr/sbin/ip ;;
        systemd) command -v systemd-analyze ;;
        libfaketime) ls /usr/lib/*/faketime/libfaketime.so.1 ;;
        *) command -v "$1" || ls "/usr/sbin/$1" ;;
    esac >/dev/null 2>&1
}
missing=""
for program in ${*:-$all}; do is_there "$program" || missing="$missing $program"; done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # The packages would start servers on their usual ports; nobody asked for those.
    policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT; }
    apt-get update -qq >/dev/null
    # Where there is no such package, the whole browser has its engine.
    apt-cache show chromium-headless-shell >/dev/null 2>&1 || missing=$(echo "$missing" | sed 's/-headless-shell//')
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "The tests need these programs:$missing. Install them, on Debian or Ubuntu with: sudo apt-get install$missing" >&2
    exit 1
fi
