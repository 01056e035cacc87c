"""`python -m bench.engine` runs bench/engine/engine_speed.py."""

from bench.engine.engine_speed import main

if __name__ == "__main__":
    main()
