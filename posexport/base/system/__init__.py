"""The machine that posexport runs on: its memory and processor, its files, which optional packages it has."""
