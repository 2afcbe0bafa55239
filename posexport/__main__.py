"""The program ``posexport``, and ``python -m posexport``."""


def main() -> None:
    """`posexport.cli.main`, and its answer to Ctrl-C while it is imported or ends."""
    try:
        from posexport.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from posexport.base.system.ending import end_interrupted

        end_interrupted()


if __name__ == "__main__":
    main()
