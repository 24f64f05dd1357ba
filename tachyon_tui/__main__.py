"""`python -m tachyon_tui` is `tachyon`."""

from tachyon_tui.cli import main

main()
