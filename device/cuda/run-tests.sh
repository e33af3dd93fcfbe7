#!/bin/sh
# Runs the test binaries beside it on the device CISTERN_TEST_DEVICE, by default cuda:0. It prints a
# summary of each package, then the failed tests, and the skipped tests with their reasons. Arguments,
# such as -test.count 20, are passed to every binary. The logs are written to the folder
# CISTERN_TEST_LOGS, or to one that is printed at the end.
cd "$(dirname "$0")" || exit 1
here=$PWD
export CISTERN_MNIST="$here/data"
export CISTERN_TEST_DEVICE="${CISTERN_TEST_DEVICE:-cuda:0}"
logs=${CISTERN_TEST_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
status=0
printf '%-34s %8s %8s %8s %8s\n' package passed failed skipped seconds
for binary in $(find . -name package.test | sort); do
	package=$(dirname "${binary#./}")
	log=$logs/$(echo "$package" | tr / -).log
	began=$(date +%s)
	cd "$here/$package" || exit 1
	./package.test -test.v "$@" >"$log" 2>&1
	code=$?
	count() { grep -c -- "--- $1" "$log"; }
	printf '%-34s %8d %8d %8d %8d' "$package" "$(count PASS)" "$(count FAIL)" "$(count SKIP)" $(($(date +%s) - began))
	if [ $code -ne 0 ]; then
		status=1
		printf '   exit status %d' $code
	fi
	echo
done
# The reason of a skip is the last line that the test logged before the skip.
awk '
	FNR == 1 { package = FILENAME; sub(/.*\//, "", package); sub(/\.log$/, "", package) }
	/^ *--- FAIL: / { print "failed: " package " " $3 }
	/^=== (RUN|CONT|NAME)/ { test = $3 }
	/^ +[a-z0-9_]+\.go:[0-9]+: / { said[test] = $0; sub(/^ +[a-z0-9_]+\.go:[0-9]+: /, "", said[test]) }
	/^ *--- SKIP: / { print "skipped: " package " " $3 ": " said[$3] }
' "$logs"/*.log
echo "logs: $logs"
exit $status
