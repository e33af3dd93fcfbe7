package memcache

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// TestWorkspaces: they have the label that a context of WithCategory would give them, in every
// report, and the scope and the pool of their context. No context is made for them.
func TestWorkspaces(t *testing.T) {
	for _, observed := range []bool{false, true} {
		s, config := &spy{}, Config{}
		if observed {
			config.Observer = s
		}
		c, dev := newCache(t, config)
		s.cache = c
		plain := context.Background()
		labelled := WithStep(WithCategory(WithModule(plain, "head"), CategoryGradient), 3)
		above := context.WithValue(labelled, otherKey{}, 1)
		labels := new(LabelContexts)
		scoped, scope := c.Scope(labels.With(plain, Label{Module: "x", Tags: "a=b"}), "scope")
		for _, ctx := range []context.Context{plain, labelled, above, scoped, WithStep(scoped, 5)} {
			want := LabelOf(WithCategory(ctx, CategoryWorkspace))
			before := scope.Own()
			b, err := c.AllocWorkspace(ctx, 1000, dev.stream(1))
			require.NoError(t, err)
			assert.Equal(t, want, b.Label())
			assert.Equal(t, CategoryWorkspace, b.Label().Category)
			if observed {
				assert.Equal(t, want, s.events[len(s.events)-1].Label)
			}
			if ctxStateOf(ctx).scope == scope {
				assert.Equal(t, before.Live+b.Size(), scope.Own().Live)
			}
			require.NoError(t, b.Free())
			again := mustAlloc(t, c, 1000, dev.stream(1))
			assert.Equal(t, Label{}, again.Label(), "the next one has its own")
			require.NoError(t, again.Free())
		}
		if !observed && !invariants.Enabled { // its checks allocate
			stream, failed := dev.stream(1), error(nil)
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				b, err := c.AllocWorkspace(above, 1000, stream)
				failed = errors.Join(failed, err, b.Free())
			}))
			require.NoError(t, failed)
		}
		scope.End()
		none, err := c.AllocWorkspace(plain, 0, nil)
		require.NoError(t, err)
		assert.True(t, none.IsZero())
		_, err = c.AllocWorkspace(plain, -1, dev.stream(1))
		assert.ErrorIs(t, err, ErrInvalid)
	}
}

// TestLabelContextsThatAreExpected: they are one object of the Go heap, and further ones are
// allocated in larger groups.
func TestLabelContextsThatAreExpected(t *testing.T) {
	for _, c := range []struct{ expected, made, objects int }{{40, 40, 1}, {3, 3, 1}, {0, 16, 1}, {0, 48, 2}, {40, 41, 2}, {-1, 16, 1}} {
		ctx := context.Background()
		n := testing.AllocsPerRun(50, func() {
			var all LabelContexts
			all.Expect(c.expected)
			for i := range c.made {
				if got := LabelOf(all.With(ctx, Label{Step: int64(i)})); got.Step != int64(i) {
					t.Errorf("%+v of %d", got, i)
				}
			}
			if all.Made() != c.made {
				t.Errorf("%d were made of %d", all.Made(), c.made)
			}
		})
		assert.EqualValues(t, c.objects, n, "%+v", c)
	}
}
