package rendezvous

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// failing is a job of ranks on a network that may fail, each with a device that may fail.
type failing struct {
	*lan
	devs     []device.Device
	stranger net.Conn // sends nothing
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	f.Pause = patience + time.Second
	m := &failing{lan: newLAN(f)}
	for range 2 {
		d, err := failtest.NewHost(f, host.Config{Capacity: 1 << 20})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		m.devs = append(m.devs, d)
	}
	return m
}

// live returns the number of listening ports and of connections.
func (m *failing) live() any {
	m.mu.Lock()
	defer m.mu.Unlock()
	return [2]int{len(m.ports), m.open}
}

func (m *failing) config(rank, size int) Config {
	return Config{Rank: rank, Size: size, Addr: "rank0", Port: 1, Token: "a secret", Attempt: "1", network: m.lan}
}

// counted is a context that counts the checks of its parent.
type counted struct {
	context.Context
	counts context.Context
}

func (c counted) Err() error {
	_ = c.counts.Err()
	return c.Context.Err()
}

func (c counted) Done() <-chan struct{} {
	c.counts.Done()
	return c.Context.Done()
}

// all runs each rank of a job in a goroutine, one after the other with delays. Like a launcher it
// ends all ranks when one has failed. It returns the ranks' error, or describes a wrong result.
func (m *failing) all(ctx context.Context, size int, do func(ctx context.Context, rank int) error) error {
	ending, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	errs := make([]error, size)
	began := time.Now()
	var group sync.WaitGroup
	for rank := range size {
		group.Go(func() {
			time.Sleep(time.Duration(rank) * time.Millisecond)
			if errs[rank] = do(counted{ending, ctx}, rank); errs[rank] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	if m.stranger != nil {
		_ = m.stranger.Close()
	}
	took := time.Since(began)
	failed, _ := m.faults.Disarm()
	switch err := errors.Join(errs...); {
	case took > time.Second && took < m.faults.Pause || took > m.faults.Pause+time.Second:
		return fmt.Errorf("%s held the ranks up for %v: %v", failed, took, err)
	case err == nil:
		return nil
	case errs[0] == nil:
		return fmt.Errorf("rank 0 says that all have the id: %v", err)
	case strings.Contains(err.Error(), "ranks []"):
		return fmt.Errorf("no rank is missing: %v", err)
	case ctx.Err() == nil && strings.Contains("Dial Accept Read Write", failed):
		return fmt.Errorf("%s was not tried again: %v", failed, err)
	default:
		return err
	}
}

// exchanges returns a trial of an exchange of three ranks, after first has run.
func (m *failing) exchanges(first func(ctx context.Context, rank int) error) failtest.Trial {
	var seen []string
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			ids := make([]string, 3)
			err := m.all(ctx, len(ids), func(ctx context.Context, rank int) error {
				if err := first(ctx, rank); err != nil {
					return err
				}
				id, err := Exchange(ctx, m.config(rank, len(ids)), fmt.Appendf(nil, "the id of rank %d", rank))
				ids[rank] = string(id)
				if err == nil && ids[rank] != "the id of rank 0" {
					return fmt.Errorf("rank %d has %q", rank, id)
				}
				return err
			})
			if err == nil {
				seen = ids
			}
			return err
		},
		See: func() any { return seen },
	}
}

var failureRows = []failtest.Row[*failing]{
	{Of: "Exchange", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.exchanges(func(context.Context, int) error { return nil })
	}},
	{Of: "Exchange beside a stranger and a rank of another start", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.exchanges(func(ctx context.Context, rank int) error {
			if rank != 2 {
				return nil
			}
			cfg := m.config(2, 3)
			cfg.Attempt = "2"
			if _, err := Exchange(ctx, cfg, nil); !errors.Is(err, device.ErrMismatch) {
				return fmt.Errorf("want it refused: %w", err)
			}
			_, at := cfg.via()
			var err error
			m.stranger, err = m.connect(at)
			return err
		})
	}},
	{Of: "Join", Make: func(_ testing.TB, m *failing) failtest.Trial {
		comms := make([]device.Communicator, len(m.devs))
		closes := func() (errs error) {
			for i, c := range comms {
				if c != nil {
					errs = errors.Join(errs, c.Close())
				}
				comms[i] = nil
			}
			return errs
		}
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				err := m.all(ctx, len(comms), func(ctx context.Context, rank int) (err error) {
					comms[rank], err = Join(ctx, m.config(rank, len(comms)), m.devs[rank], device.CommunicatorOptions{})
					return err
				})
				if err != nil {
					err = errors.Join(err, closes())
				}
				return err
			},
			See:  func() any { return []bool{comms[0] != nil, comms[1] != nil} },
			Undo: closes,
		}
	}},
}

// TestEveryFailure: if any one call of the network or check of a context fails, either the ranks
// try again and succeed, or the exchange fails with the cause, leaves no port or connection, and
// can be repeated.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*failing]{Open: openFailing, Live: (*failing).live, Rows: failureRows, Bubble: true}.Run(t)
}

// TestRankKeepsItsID: a rank that has the id returns it even if rank 0 has not confirmed, has
// broken the next connection, and is gone then.
func TestRankKeepsItsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &failing{lan: newLAN(new(failtest.Faults))}
		cfg := m.config(1, 2)
		_, at := cfg.via()
		rank0, err := m.listen(t.Context(), at)
		require.NoError(t, err)
		go func() {
			for again := range 2 {
				conn, _ := rank0.Accept()
				h, nonce := readHello(conn), make([]byte, nonceSize)
				if again == 0 {
					said := (&reply{text: []byte("the id")}).bytes()
					_, _ = conn.Write(append([]byte(magic), nonce...))
					_, _ = conn.Write(append(said, prove(cfg.Token, "server", h, nonce, said)...))
					_, _ = io.ReadFull(conn, make([]byte, sha256.Size+1))
				}
				_ = conn.Close()
			}
			_ = rank0.Close()
		}()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		id, err := Exchange(ctx, cfg, nil)
		require.NoError(t, err)
		require.Equal(t, "the id", string(id))
		require.Less(t, time.Since(began), time.Second)
	})
}
