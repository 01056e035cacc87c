"""`python -m bench.hostile` runs bench/hostile/socket_hostile.py."""

from bench.hostile.socket_hostile import main

if __name__ == "__main__":
    main()
