"""python -m opgauge"""

if __name__ == "__main__":  # a reference worker imports this file again and needs no command line
    from .cli import main

    main()
