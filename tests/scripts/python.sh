#!/bin/sh
# The Python package's tests, over a build's library, with numpy alone or with what else is there.
# Usage: tests/scripts/python.sh LIBRARY [TEST...]. Exit 77 where no Python has numpy.
library=$1
shift
cd "$(dirname "$0")/../../python/tests" || exit 2
for python in ${PYTHON:-python3 /usr/bin/python3}; do
    "$python" -c 'import sys, numpy; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    [ $# -gt 0 ] || set -- discover
    TESSERA_LIBRARY=$library PYTHONPATH=.. exec "$python" -m unittest "$@" -v
done
echo 'needs Python 3.10 or later with numpy (package python3-numpy)'
exit 77
