from lightning_sm.cli import main

if __name__ == "__main__":
    main()
