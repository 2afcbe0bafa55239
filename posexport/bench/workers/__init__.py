"""What runs in a fresh process and measures one contestant. Some run in a rival's environment: no import but numpy's
and the contestant's own."""
