"""`python -m bench.report` runs bench/report/write_report.py."""

from bench.report.write_report import main

if __name__ == "__main__":
    main()
