"""What each user spent and was promised, written down and added up naively."""

from streamveil.mechanisms.core.budgets import to_units


class Recount:
    """One user: every slot's requirement, and what was spent in it."""

    def __init__(self, requirement):
        self.changes = [(-(10**9), requirement)]
        self.spent = {}

    def in_force(self, slot):
        return [requirement for first, requirement in self.changes if first <= slot][-1]

    def allows(self, slot, units) -> bool:
        """Every window that holds the slot: each opened by an earlier one, and the one back."""
        longest = max(requirement.window for _, requirement in self.changes)
        for opened in range(slot - longest + 1, slot + 1):
            promised = self.in_force(opened)
            if slot < opened + promised.window and not self._fits(
                range(opened, opened + promised.window), promised, units
            ):
                return False
        now = self.in_force(slot)
        return self._fits(range(slot - now.window + 1, slot + 1), now, units)

    def _fits(self, slots, requirement, units) -> bool:
        total = sum(self.spent.get(slot, 0) for slot in slots)
        return total + units <= to_units(requirement.epsilon)

    def spend(self, slot, units):
        self.spent[slot] = self.spent.get(slot, 0) + units

    def change(self, slot, requirement):
        self.changes.append((slot, requirement))
