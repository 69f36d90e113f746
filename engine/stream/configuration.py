"""What makes the ledgers of a stream on a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamveil.engine.count.event_codes import Layout
from streamveil.engine.stream.by_class import ByClass
from streamveil.engine.stream.drivers import Ledgers
from streamveil.mechanisms.driver.exact import DynamicExact, Exact
from streamveil.mechanisms.driver.saved_state import CHANGING, Parts
from streamveil.mechanisms.presence.limits import priced
from streamveil.mechanisms.protocol import DynamicMechanism, Mechanism, Population, Setting
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource
from streamveil.mechanisms.registry import dynamic_mechanism, mechanism, only_dynamic

if TYPE_CHECKING:
    from streamveil.engine.stream.by_cohort import ByCohort
    from streamveil.engine.stream.by_presence import ByPresence
    from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
    from streamveil.mechanisms.presence import Limit


@dataclass(frozen=True)
class Configuration:
    """What makes the ledgers on a worker: public, but for the key."""

    mechanism: str
    population: Population
    layout: Layout
    noise_key: Callable[[], NoiseKeys]
    stream: str = ""
    context: Parts = field(default_factory=dict)
    """What the counts mean, so that the noise of streams with the same counts is independent."""
    changing: bool = False
    """Whether counts come by cohort, with who moved."""
    longest_window: int | None = None
    """The longest window that may be asked for; the longest of the population when None."""
    default_class: int | None = None
    """Class of users outside the registry."""
    revise: int = 0
    """How many slots later a slot is revised; 0 for never."""
    presence: Presence | None = None
    """Where users count in a few slots only; the population asks for what one of these may cost."""
    test_mode: bool = False
    """Whether exact counts are released in place of private ones: NOT private."""
    unknown: int | None = None
    """The class of which nobody said how many users it has; its size is what is assumed."""

    def make(self) -> Ledgers[Any, Any]:
        """Make them. Raises ConfigurationError for a mechanism that does not fit."""
        if only_dynamic(self.mechanism):
            return self._by_cohort(self._noise(), None)
        if self.presence is not None:
            from streamveil.engine.stream.by_presence import ByPresence  # few runs need it

            before = self._unchanging if self.presence.moving else None
            return ByPresence(
                self._present, self.layout, self.presence.limits, before, self.unknown
            )
        made = self._mechanism(self.population)
        noise = self._noise()
        fixed = ByClass(made, noise, self.layout, self.context, self.unknown)
        return self._by_cohort(noise, fixed) if self.changing else fixed

    def _mechanism(self, population: Population) -> Mechanism[Any]:
        made = mechanism(self.mechanism, population, revise=self.revise)
        return Exact(population) if self.test_mode else made

    def _dynamic_mechanism(self) -> DynamicMechanism[Any]:
        made = dynamic_mechanism(self.mechanism, self._setting, revise=self.revise)
        return DynamicExact(self._setting) if self.test_mode else made

    def _noise(self) -> NoiseSource:
        return NoiseSource(self.noise_key(), self.stream)

    def _by_cohort(self, noise: NoiseSource, fixed: ByClass | None) -> ByCohort:
        """Ledgers by cohort; those of fixed requirements may have released the slots before."""
        from streamveil.engine.stream.by_cohort import ByCohort  # as above
        from streamveil.mechanisms.driver.dynamic_stream import DynamicStream

        stream = DynamicStream(
            self._dynamic_mechanism(),
            self.population.requirements.as_changing,
            self.population.sizes,
            noise,
            default=self.default_class,
            context=self.context,
        )
        return ByCohort(stream, self.layout, self.changing, self.unknown, fixed)

    def _present(self, limits: tuple[Limit, ...]) -> PresentStream:
        """The stream where users count in so many slots."""
        from streamveil.mechanisms.driver.life_stream import LifeStream
        from streamveil.mechanisms.driver.present_stream import PresentStream

        assert self.presence is not None
        asked, adjacency = self.presence.requirements, self.presence.adjacency
        population = replace(self.population, requirements=priced(limits, asked, adjacency))
        made = LifeStream if asked.forever else PresentStream
        return made(
            self._mechanism(population),
            self._noise(),
            self.context,
            replace(self.presence, limits=limits),
        )

    def _unchanging(self) -> ByPresence:
        """The same as long as nobody changed."""
        from streamveil.engine.stream.by_presence import ByPresence

        assert self.presence is not None
        before = replace(
            self,
            population=replace(self.population, joined=False),
            context={name: one for name, one in self.context.items() if name != CHANGING},
            presence=replace(self.presence, moving=False),
        )
        return ByPresence(before._present, self.layout, self.presence.limits)

    @property
    def _setting(self) -> Setting:
        population = self.population
        longest = population.requirements.longest
        return Setting(
            population.bins,
            self.longest_window or longest,
            population.sensitivity,
            population.slot_length,
        )
