package trace

import "fmt"

// Detail is the level that decides which operations get a span. A higher detail includes the lower
// ones. Below All a span is made only under a recording parent, except spans of steps.
type Detail int8

// The levels of detail. A span costs 1 to 3 µs with an SDK and a batch processor, whereas an
// allocation from the cache costs a tenth of that. All is therefore for a close look, or for one
// step in n ([Config.AllEvery]).
const (
	// Steps: training steps only.
	Steps Detail = -1
	// Slow: also operations that take microseconds or more: driver calls, waits for pending frees,
	// emptying the cache, copies. An allocation that fails is an event on the parent's span. The
	// default.
	Slow Detail = 0
	// All: also every allocation and free. As [Config.Detail] it includes operations without a
	// parent, too: each is the first span of a trace of its own, if the sampler takes it. A free
	// links to the span of its allocation.
	All Detail = 1
)

// String returns "steps", "slow" or "all".
func (d Detail) String() string {
	switch d {
	case Steps:
		return "steps"
	case Slow:
		return "slow"
	case All:
		return "all"
	}
	return fmt.Sprintf("Detail(%d)", int8(d))
}

// MarshalText returns String's text, for flags and JSON.
func (d Detail) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the texts of String.
func (d *Detail) UnmarshalText(text []byte) error {
	for _, level := range []Detail{Steps, Slow, All} {
		if level.String() == string(text) {
			*d = level
			return nil
		}
	}
	return fmt.Errorf("trace: detail %q: %w: it must be steps, slow or all", text, ErrInvalid)
}
