"""What is no test here: it is run by one, where there is Triton."""

collect_ignore_glob = ["*_cases.py", "ahead.py"]
