from lightning_sm.cli import main

main()
