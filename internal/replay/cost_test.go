package replay

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

func limited(t *testing.T, text string, limits budget.Limits) *recording.Program {
	list, err := recording.Read(strings.NewReader(text), "file", recording.Options{Limits: limits})
	require.NoError(t, err)
	p, err := recording.NewProgram(list[0])
	require.NoError(t, err)
	return p
}

// TestSearchEndsInTime: an endless search takes half of the remaining work, so that its best replay
// can still be counted.
func TestSearchEndsInTime(t *testing.T) {
	p := program(t, "../../memcache/testdata/recordings/tight.jsonl.gz")
	p.LimitKnown, p.Stats = true, nil
	var last int
	for i, e := range p.Entries {
		if e.Action == recording.Alloc {
			last = i
		}
	}
	p.Entries[last].Addr += 512 // no reading explains it
	limit := 10 * stepWork * int64(len(p.Steps))
	p.Budget = budget.New(budget.Limits{MaxWork: limit})
	v, err := Verify(p)
	require.NoError(t, err)
	require.Positive(t, v.Mismatches())
	_, work := p.Budget.Spent()
	require.Greater(t, work, limit/2, "it has searched")
	require.LessOrEqual(t, work, limit)

	p.Budget = budget.New(budget.Limits{MaxWork: stepWork * int64(len(p.Steps)) / 2})
	_, err = Verify(p)
	require.ErrorIs(t, err, budget.ErrExceeded, "not even one replay")
	require.ErrorContains(t, err, "tight.jsonl.gz: ")
}

// TestDriverCallsCost: a request that maps a device full of granules is charged for each, ends
// there, and leaves nothing that would be charged again.
func TestDriverCallsCost(t *testing.T) {
	var text strings.Builder
	text.WriteString("{\"conf\":\"\"}\n")
	for range 300 {
		fmt.Fprintln(&text, `["oom",5,1125899906842624,0]`)
	}
	p := limited(t, text.String(), budget.Limits{})
	s, err := NewScenario(p)
	require.NoError(t, err)
	before, _ := p.Budget.Spent()
	_, err = s.Estimate(memcache.Config{Exact: true, ExpandableSegments: true})
	require.ErrorIs(t, err, budget.ErrExceeded)
	require.ErrorContains(t, err, "entry 0")
	e, err := s.Estimate(memcache.Config{Exact: true})
	require.NoError(t, err)
	require.EqualValues(t, 300, e.OOMs)
	after, _ := p.Budget.Spent()
	require.Equal(t, before, after, "a replay's memory is refunded")
}

// TestReplaysThatDoNotStart are refunded, whichever step fails.
func TestReplaysThatDoNotStart(t *testing.T) {
	text := "{\"conf\":\"\"}\n[\"alloc\",4096,512,0]\n"
	for name, try := range map[string]struct {
		config memcache.Config
		limits budget.Limits
		begin  error
	}{
		"work":    {limits: budget.Limits{MaxWork: machineWork}},
		"memory":  {limits: budget.Limits{MaxMemory: streamMemory}},
		"options": {config: memcache.Config{MaxSplitSizeMB: -1}},
		"start":   {begin: errors.New("nothing to begin with")},
	} {
		p := limited(t, text, budget.Limits{})
		b := budget.New(try.limits)
		_, err := newMachine(p, try.config, b, false, func(*machine) error { return try.begin })
		require.Error(t, err, name)
		memory, _ := b.Spent()
		require.Zero(t, memory, name)
	}
}

// TestMemoryOfAReplay: the blocks and streams of a program are charged before its replay begins.
func TestMemoryOfAReplay(t *testing.T) {
	var text strings.Builder
	text.WriteString("{\"conf\":\"\"}\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "[\"alloc\",%d,512,%d]\n", 4096+512*i, i)
	}
	p := limited(t, text.String(), budget.Limits{MaxMemory: 1000 * streamMemory})
	_, err := Verify(p)
	require.ErrorIs(t, err, budget.ErrExceeded)
	require.ErrorContains(t, err, "--max-memory")
	p = limited(t, text.String(), budget.Limits{MaxMemory: 2000 * streamMemory})
	_, err = Verify(p)
	require.NoError(t, err)
}
