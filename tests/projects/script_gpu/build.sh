#!/bin/sh
# The "compiler": an app whose kernel takes as many us as reduce.cu says. STATE is a folder of the test.
set -e
cost=$(sed -n 's/.*cost = \([0-9]*\);/\1/p' reduce.cu)
[ -n "$cost" ] || { echo "reduce.cu:3: error: no cost" >&2; exit 1; }
[ ! -e "$STATE/hold_build_$cost" ] || { touch "$STATE/holding"; sleep 60; }
{ printf '#!/bin/sh\ncost=%s\ncode=%016x\n' "$cost" "$(cksum < reduce.cu | cut -d' ' -f1)"; cat app.in; } > app.new
chmod +x app.new
mv app.new app
