"""The paths and levels under which jobs do most work: all of them where they are few, else by steps, and a bound."""
