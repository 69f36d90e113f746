"""A run to its end, with its card: what is whole of its results is said, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from streamveil.io.files import is_there
from streamveil.io.places import is_bigquery
from streamveil.io.tables import remove_unfinished
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, InputLost, MachineFault
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.cards.run_card import Statement
from streamveil.pipelines.console.errors import PartlyWritten, reason_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.console.signals import ending
from streamveil.pipelines.outputs.output_locks import claimed, drop_claims
from streamveil.pipelines.reports.summary import Summary


@contextmanager
def telling_what_is_whole(path: str, files: Sequence[str]) -> Iterator[None]:
    """Say that the results are whole if an error keeps another file from being written."""
    try:
        yield
    except (OSError, MachineFault) as error:
        whole = f": {', '.join(files)}" if files else ""
        why = reason_of(error)
        if not isinstance(error, MachineFault):  # which says so itself
            why = f"{path} could not be written: {why}"
        raise PartlyWritten(f"{why}. The results are whole{whole}") from error


@contextmanager
def telling_of_tables(*places: str | None) -> Iterator[None]:
    """Let an error of a run that appends to tables say what the next run would do to them.

    Raises PartlyWritten in place of an error of the run.
    """
    try:
        yield
    except (BudgetExceeded, ConfigurationError, InputLost):
        raise
    except Exception as error:
        tables = [place.partition("?")[0] for place in places if is_bigquery(place)]
        if not tables:
            raise
        raise PartlyWritten(
            f"{reason_of(error)}. If rows of this run are in {', '.join(tables)} already, take "
            "them out before the next run, which spends the budget again unless it has the same "
            "noise key"
        ) from error


def run_with_card(
    run: Callable[[], Summary],
    files: Sequence[str],
    card: Statement,
    at_end: Callable[[], Statement] | None = None,
) -> Summary:
    """The same as :func:`run_whole`, with the card of the run at its launch and at its end.

    `at_end` gives the card at the end, if it is not that of the launch.

    Raises what that does, ConfigurationError for a card that cannot be written at the launch, and
    PartlyWritten for one that cannot be afterwards.
    """
    if card.missing:
        tell(card.missing)
    begun = [*files, card.path] if card.path else files
    with claimed(files), ending(partial(_removed, files, begun)):
        try:
            card.launch()
        except (OSError, MachineFault) as error:
            raise ConfigurationError(
                f"the card {card.path} cannot be written ({reason_of(error)}), so nothing was "
                f"launched: choose another place ({opt.card})"
            ) from error
        if card.path and card.endless:  # a stream may never end, so say it now
            tell(f"wrote {card.path}")
        summary = run_whole(run, files)
        with telling_what_is_whole(card.path or "", files):
            if not summary.handed_over:
                (at_end() if at_end else card).end(summary.counters)
                return summary
            card.hand_over()
    if card.path and not card.endless:
        tell(f"wrote {card.path}")
    return summary


def run_whole(run: Callable[[], Summary], files: Sequence[str]) -> Summary:
    """Run a job to its end; an error tells which of the files that it writes were whole."""
    try:
        summary = run()
        for path in files:
            if not summary.handed_over and not is_there(path):
                raise RuntimeError(f"the run is done, but {path} was not written")
        return summary
    except Exception as error:
        whole, unknown = _whole_and_unknown(files)
        if not (whole or unknown) or isinstance(error, InputLost):
            raise
        kept = f"These were whole before that and are kept: {', '.join(whole)}. " if whole else ""
        if unknown:
            kept += f"Whether these were is not known, for their service does not say: \
{', '.join(unknown)}. "
        ours = isinstance(error, ConfigurationError)
        raise (ConfigurationError if ours else PartlyWritten)(
            f"{error if ours else reason_of(error)}. {kept}Move what is whole away before the next "
            "run, which spends the budget again unless it has the same noise key"
        ) from error


def _whole_and_unknown(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those files that are there, and those of which their filesystem does not say it."""
    whole, unknown = [], []
    for path in files:
        try:
            if is_there(path):
                whole.append(path)
        except MachineFault:
            unknown.append(path)
    return whole, unknown


def _removed(files: Sequence[str], begun: Sequence[str]) -> str:
    """Remove what is half written of some files; says what that was, and which of a run are whole.

    Args:
        files: those of the run, whose claims go as well.
        begun: all that it may have begun to write.
    """
    removed = sum(remove_unfinished(path) for path in begun if "://" not in path)
    drop_claims(files)
    whole, _ = _whole_and_unknown(files)
    kept = f"; whole, and kept: {', '.join(whole)}" if whole else "; no result was whole"
    return f"removed {number_of(removed, 'unfinished file')}{kept}"
