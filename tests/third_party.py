"""Print the third-party packages that some code loads: python -P third_party.py 'import refocal'.

Used by test_imports.py on the source and by smoke_wheel.sh on the built wheel.
"""

import sys

if __name__ == "__main__":
    before = set(sys.modules)
    exec(sys.argv[1])
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    others = loaded - set(sys.stdlib_module_names) - {"refocal"}
    # Not packages either: helpers of compiled modules, which have no spec (cython_runtime), and the
    # build settings of Python, whose name differs from one platform to the next.
    others = {name for name in others if getattr(sys.modules[name], "__spec__", None)}
    print(*sorted(name for name in others if not name.startswith("_sysconfigdata")))
