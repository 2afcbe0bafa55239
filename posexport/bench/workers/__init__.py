"""What runs in a fresh process and measures one candidate. Some run in an exporter's environment: no import but numpy's
and the candidate's own."""
