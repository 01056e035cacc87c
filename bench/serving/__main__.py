"""`python -m bench.serving` runs bench/serving/prefix_and_mix.py."""

from bench.serving.prefix_and_mix import main

if __name__ == "__main__":
    main()
