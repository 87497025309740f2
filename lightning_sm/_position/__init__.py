"""Where in its data a run stands, so that one that goes on sees what it would have seen."""
