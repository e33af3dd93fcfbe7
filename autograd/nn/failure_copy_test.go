package nn_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// launched is the reason why an operation of a copy may take a partial effect.
var launched = map[failtest.Kind]string{failtest.Failed: "a device that refuses a launch after the first has done the ones before"}

// copies is a trial of an operation of a model's copy, which differs from the model. After a
// failure each tensor and its copy are either unchanged or as after a success.
func copies(do func(s *nn.StateCopy, ctx context.Context) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		trial := func() failtest.Trial {
			in := newInit(m.Ctx, m)
			l := nn.Sequential{in.Linear(3, 2), in.BatchNorm(2)}
			require.NoError(t, in.Err())
			s := nn.NewStateCopy(m.Ctx, l)
			require.NoError(t, errors.Join(s.Err(), m.RT.Zero(m.Ctx, l[0].(*nn.Linear).Weight.Value()), m.RT.Zero(m.Ctx, l[1].(*nn.BatchNorm).Var)))
			return failtest.Trial{
				Do: func(ctx context.Context) error { return do(s, ctx) },
				See: func() any {
					var all []any
					for _, model := range []any{l, s} {
						state, err := nn.StateDict(model)
						require.NoError(t, err)
						for _, x := range state {
							all = append(all, m.Numbers(x.Tensor))
						}
					}
					return all
				},
				Undo: func() error { return errors.Join(s.Close(), in.Close()) },
			}
		}
		twin := trial()
		require.NoError(t, twin.Do(m.Ctx))
		want := twin.See().([]any)
		require.NoError(t, twin.Undo())
		of := trial()
		of.Left = func(before any, err error) error {
			all, was := of.See().([]any), before.([]any)
			n := len(all) / 2
			for i := range n { // a tensor and its copy
				now := [2]any{all[i], all[i+n]}
				if !reflect.DeepEqual(now, [2]any{was[i], was[i+n]}) && !reflect.DeepEqual(now, [2]any{want[i], want[i+n]}) {
					return fmt.Errorf("%v, want %v %v or %v %v: %w", now, was[i], was[i+n], want[i], want[i+n], err)
				}
			}
			return nil
		}
		return of
	}
}

var copyRows = []failtest.Row[*failing]{
	{Of: "StateCopy.Save", Partly: launched, Make: copies((*nn.StateCopy).Save)},
	{Of: "StateCopy.Restore", Partly: launched, Make: copies((*nn.StateCopy).Restore)},
	{Of: "StateCopy.Swap", Partly: launched, Ends: lost, Make: copies((*nn.StateCopy).Swap)},
	{Of: "StateCopy.Average", Partly: launched, Make: copies(func(s *nn.StateCopy, ctx context.Context) error { return s.Average(ctx, 0.5) })},
	{Of: "NewStateCopy StateCopy.Err StateCopy.Close", Ends: lost, Make: func(t testing.TB, m *failing) failtest.Trial {
		in := newInit(m.Ctx, m)
		l := in.Linear(3, 2)
		require.NoError(t, in.Err())
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				s := nn.NewStateCopy(ctx, l)
				return errors.Join(s.Err(), s.Close())
			},
			See:  func() any { return m.SeeParameters(l.Parameters()) },
			Undo: in.Close,
		}
	}},
}

// TestEveryCopyFails: whichever driver call, allocation or check of a context fails, a call of a
// model's copy takes full effect or none, unless a launch was refused.
func TestEveryCopyFails(t *testing.T) {
	t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, copyRows) })
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, copyRows) })
}
