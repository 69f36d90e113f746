"""Which test of this repository convicts each mutant without luck: its door.

Doors are tests of their own rooms, called here with a mistake in place. They pass without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from streamveil.engine.count.event_codes import MEMBERS
from streamveil.mechanisms import BudgetExceeded
from streamveil.mechanisms.per_record import Bounds
from tests.audits.mutants import LEAVING, MUTANTS

# A session may draw fewer of each property, and a mistake shows in one of so many for sure.
MOST_EXAMPLES = 500


@dataclass(frozen=True)
class Door:
    """A test: its module below `tests`, its name, and its arguments."""

    module: str
    test: str
    arguments: dict[str, Any] = field(default_factory=dict)
    patches: bool = False
    """Whether it takes `monkeypatch`."""

    def __str__(self) -> str:
        return f"{self.module.replace('.', '/')}.py::{self.test}"

    def open(self, examples: int | None = None) -> None:
        """Run the test, with so many examples if it draws any; raises what it raises."""
        test = getattr(import_module(f"tests.{self.module}"), self.test)
        with pytest.MonkeyPatch.context() as patch:
            if drawn := getattr(test, _DRAWN, None):  # the first example that fails will do
                once = settings(
                    drawn,
                    max_examples=examples or MOST_EXAMPLES,
                    phases=(Phase.generate,),
                    report_multiple_bugs=False,
                    derandomize=True,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                )
                patch.setattr(test, _DRAWN, once)
            more = {"monkeypatch": patch} if self.patches else {}
            test(**self.arguments, **more)


_DRAWN = "_hypothesis_internal_use_settings"


def convicts(name: str) -> bool:
    """Whether the door of a mutant is shut to it."""
    with MUTANTS[name].patched():
        try:
            DOORS[name].open()
        except (AssertionError, BudgetExceeded, pytest.fail.Exception):
            return True
    return False


def door(module: str, test: str, *, patches: bool = False, **arguments: Any) -> Door:
    """A test of the mechanisms."""
    return Door(f"mechanisms.{module}", test, arguments, patches)


_CALIBRATED = door(
    "test_mechanisms", "test_standard_error_is_calibrated", name="pba", sensitivity=1
)
_NO_WINDOW = door("accounting.test_schedule", "test_no_window_overspends", name="pba")
_LOSSES = door("adaptive.test_losses", "test_losses_are_what_is_booked")
_SAMPLING = door(
    "test_audit", "test_sampling_keeps_its_claim", patches=True, adjacency="add_remove", least=0.9
)
_SAMPLING_REPLACED = door(
    "test_audit", "test_sampling_keeps_its_claim", patches=True, adjacency="replace", least=0.6
)
_LOOK = door("test_audit", "test_dissimilarity_keeps_its_claim")
_ONE_EVENT = door(
    "test_mechanisms",
    "test_one_event_changes_all_noise_from_then_on",
    patches=True,
    name="pba",
    changed=0,
)
_CHANGING = door("driver.test_dynamic_stream", "test_no_window_overspends", name="dpbd")
_PRICES = door("driver.test_prices", "test_no_slot_costs_more_than_was_said", text="pbd")
_RELEASE = door(
    "adaptive.test_adaptive_audit",
    "test_a_release_keeps_its_claim",
    adjacency="add_remove",
    least=0.9,
)
_OWN_NOISE = Door(
    "audits.test_noise_of_bins", "test_every_bin_has_noise_of_its_own", {"name": "uniform"}
)
_BOUNDED = Door(
    "engine.count.test_bounding",
    "test_the_kept_distinct_bin_is_uniform",
    {"kind": MEMBERS, "most": 1},
)

DOORS = {
    "noise_a_fifth_less": _CALIBRATED,
    "noise_a_third_less": _CALIBRATED,
    "noise_halved": _CALIBRATED,
    "noise_of_points_a_fifth_less": _RELEASE,
    "noise_of_points_halved": _RELEASE,
    "noise_of_sums_a_third_less": door(
        "adaptive.test_broken_sums", "test_sums_keep_their_claim", gap=3
    ),
    "looks_with_half_the_noise": _LOOK,
    "looks_without_noise": _LOOK,
    "empty_bins_without_noise": _CALIBRATED,
    "the_last_bin_without_noise": _OWN_NOISE,
    "one_draw_for_all_bins": _OWN_NOISE,
    "one_draw_for_all_slots": _ONE_EVENT,
    "noise_that_counts_have_no_part_in": _ONE_EVENT,
    "one_purpose_for_two_draws": door(
        "test_mechanisms", "test_no_randomness_is_used_twice", patches=True, name="pba"
    ),
    "zero_of_both_signs": door(
        "randomness.test_noise", "test_discrete_laplace_has_its_distribution", units=2**40
    ),
    "a_replaced_event_as_one": _SAMPLING_REPLACED,
    "contributions_ignored": _SAMPLING_REPLACED,
    "weights_without_sensitivity": door(
        "adaptive.test_weighting", "test_no_release_costs_more_than_was_offered"
    ),
    "events_unbounded": _BOUNDED,
    "events_bounded_by_bin": _BOUNDED,
    "absorbs_a_slot_early": _NO_WINDOW,
    "nothing_nullified": _NO_WINDOW,
    "nullifies_a_slot_less": _NO_WINDOW,
    "absorbs_twice": _NO_WINDOW,
    "publications_forgotten": _NO_WINDOW,
    "shares_rounded_up": _NO_WINDOW,
    "recycled_a_slot_early": door("accounting.test_window_sums", "test_sums_are_those_of_a_window"),
    "publications_unrecorded": door(
        "accounting.test_schedule", "test_no_window_overspends", name="pbd"
    ),
    "all_for_publications": door(
        "accounting.test_schedule", "test_no_window_overspends", name="pbd"
    ),
    "skipped_slots_unbooked": door(
        "test_mechanisms", "test_every_slot_pays_for_its_dissimilarity", patches=True, name="pbd"
    ),
    "windows_a_slot_short": door(
        "test_mechanisms", "test_no_window_overspends_when_counts_jump", name="uniform"
    ),
    "no_filter": door("test_mechanisms", "test_the_filter_stops_a_spendthrift"),
    "a_filter_that_forgets_early": door(
        "accounting.test_window_filter", "test_against_brute_force"
    ),
    "spending_forgotten_at_a_restart": door(
        "accounting.test_window_sums", "test_a_record_keeps_the_future"
    ),
    "filters_forget_at_a_restart": door(
        "accounting.test_window_sums", "test_a_record_keeps_the_future"
    ),
    "nobody_is_thinned": _SAMPLING,
    "kept_in_proportion": _SAMPLING,
    "thresholds_from_who_is_there": door(
        "test_mechanisms",
        "test_thresholds_follow_class_sizes_not_presence",
        patches=True,
        name="pba",
    ),
    "all_weigh_alike": _LOSSES,
    "a_reserve_counted_twice": door("adaptive.test_fixed", "test_no_window_overspends"),
    "two_audits_in_a_window": door(
        "adaptive.test_fixed", "test_audits_come_once_in_the_longest_window"
    ),
    "looks_for_free": _LOSSES,
    "a_gate_without_noise": _LOSSES,
    "compared_with_the_counts": _LOSSES,
    "gaps_by_true_counts": _LOSSES,
    "sums_paid_at_the_end": _LOSSES,
    "sums_go_on": _LOSSES,
    "sums_by_who_came": _LOSSES,
    "promises_forgotten": _CHANGING,
    "windows_ahead_end_early": _CHANGING,
    "changes_in_force_late": door(
        "driver.test_dynamic_stream", "test_interned_ledgers_are_those_of_each_user", name="dpbd"
    ),
    "one_slot_more_counts": door(
        "presence.test_counters", "test_batches_restarts_and_order_change_nothing"
    ),
    "blocks_from_the_first_visit": door(
        "presence.test_counters", "test_batches_restarts_and_order_change_nothing"
    ),
    "a_price_for_fewer_slots": door(
        "presence.test_limits",
        "test_no_window_differs_in_more_slots_than_it_is_priced_for",
        rule=(7, 1, 2),
    ),
    "noise_of_one_slot_for_several": door(
        "infinite.test_gated",
        "test_noise_has_the_scales_of_the_proof",
        patches=True,
        sensitivity=1,
        latest=3,
    ),
    "a_gate_for_another_sensitivity": door(
        "infinite.test_gated",
        "test_noise_has_the_scales_of_the_proof",
        patches=True,
        sensitivity=1,
        latest=3,
    ),
    "a_gate_without_its_factor_two": door(
        "infinite.test_gated",
        "test_noise_has_the_scales_of_the_proof",
        patches=True,
        sensitivity=1,
        latest=3,
    ),
    "a_series_without_an_end": door(
        "infinite.test_series",
        "test_infinitely_many_terms_stay_within_the_whole",
        power=1.5,
        root=60,
        whole=1 << 40,
    ),
    "every_epoch_as_the_first": door(
        "infinite.test_gated", "test_a_gate_that_opens_all_the_time_spends_no_more"
    ),
    "a_draw_without_the_factor_t": door(
        "infinite.test_infinite_audit",
        "test_dpi_loses_no_more_than_epsilon_with_a_user_in_every_slot",
        mode="cumulative",
        total=6,
    ),
    "the_truth_too_often": door(
        "local.test_oracles", "test_a_report_never_costs_more_than_its_price", kind="grr"
    ),
    "one_symbol_too_few": door(
        "local.test_oracles", "test_a_report_never_costs_more_than_its_price", kind="grr"
    ),
    "true_bits_kept_as_others": door(
        "local.test_oracles", "test_oue_has_its_distribution", epsilon=1.0, symbols=3
    ),
    "every_event_reported": door("local.test_presence", "test_many_devices_follow_the_rule"),
    "an_answer_drawn_anew": door("local.client.test_device", "test_asking_again_costs_nothing"),
    "reports_for_a_shorter_window": door(
        "local.test_audit", "test_a_window_keeps_its_claim", name="lbu", symbols=2
    ),
    "noise_of_the_next_node": door(
        "per_record.test_audit_nodes",
        "test_a_release_keeps_within_the_budget",
        kind="count",
        name="hat",
        value=7.0,
        budget=1.1,
    ),
    "parts_rounded_up": door(
        "per_record.test_node_noise",
        "test_no_record_loses_more_than_its_budget",
        kind="count",
        name="hat",
        bounds=Bounds(0.2, 3.0, 10.0),
    ),
    "nodes_chosen_by_true_totals": Door(
        "audits.test_choice_of_nodes", "test_nodes_are_chosen_by_what_is_published"
    ),
    "domains_rounded_up": door(
        "per_record.test_node_noise",
        "test_no_budget_is_in_a_domain_above_its_own",
        bounds=Bounds(0.2, 3.0, 10.0),
    ),
    "domains_unchecked": door(
        "per_record.test_node_noise",
        "test_no_record_loses_more_than_its_budget",
        kind="count",
        name="prdp",
        bounds=Bounds(0.2, 3.0, 10.0),
    ),
    "budgets_undivided_in_a_tree": door(
        "per_record.test_audit_nodes",
        "test_running_totals_keep_within_the_budget",
        kind="count",
        record=1,
    ),
    "shares_of_more_than_all": door(
        "queries.test_losses", "test_no_window_of_base_slots_overspends"
    ),
    "slots_in_part_as_whole": door(
        "queries.test_losses", "test_no_user_loses_more_in_a_window_of_base_slots"
    ),
    "windows_of_queries_rounded_down": door(
        "queries.test_losses", "test_no_window_of_base_slots_overspends"
    ),
    "releases_charged_to_their_last_slot": door(
        "queries.test_query_filter", "test_against_brute_force"
    ),
    **{
        name: Door(
            "audits.test_replay",
            "test_what_leaves_follows_from_noisy_results",
            {"scene": one.scene},
        )
        for name, one in MUTANTS.items()
        if one.breaks in LEAVING
    },
}
