package rendezvous

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// free returns a Config of size ranks with a free port.
func free(t *testing.T, size int) Config {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	return Config{Size: size, Addr: "127.0.0.1", Port: port, Token: "a secret", Attempt: "1"}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// meet runs Exchange for some ranks, each in a goroutine after a random delay.
func meet(ctx context.Context, cfg Config, id []byte, ranks ...int) (ids [][]byte, errs []error) {
	ids, errs = make([][]byte, len(ranks)), make([]error, len(ranks))
	var group sync.WaitGroup
	for i, r := range ranks {
		group.Go(func() {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			mine := cfg
			mine.Rank = r
			ids[i], errs[i] = Exchange(ctx, mine, id)
		})
	}
	group.Wait()
	return ids, errs
}

// TestCollectiveRendezvous: all ranks get the id in whatever order they start, and no process
// listens afterwards.
func TestCollectiveRendezvous(t *testing.T) {
	id := bytes.Repeat([]byte{1, 2, 3, 4}, 32)
	for _, order := range [][]int{{0}, {0, 1}, {1, 0}, {3, 2, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}} {
		cfg := free(t, len(order))
		ids, errs := meet(within(t, 20*time.Second), cfg, id, order...)
		for i := range order {
			require.NoError(t, errs[i])
			require.Equal(t, id, ids[i])
		}
		_, err := net.Dial("tcp", net.JoinHostPort(cfg.Addr, itoa(cfg.Port)))
		require.Error(t, err)
	}
}

// TestCollectiveRendezvousAmongStrangers: strangers that send nothing or nonsense, or that leave,
// delay no rank.
func TestCollectiveRendezvousAmongStrangers(t *testing.T) {
	cfg := free(t, 3)
	ctx := within(t, 20*time.Second)
	began := time.Now()
	var group sync.WaitGroup
	group.Go(func() {
		_, errs := meet(ctx, cfg, []byte("id"), 0)
		if errs[0] != nil {
			t.Error(errs[0])
		}
	})
	hello := &hello{rank: 1, size: 3}
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 5000), string(hello.bytes()), string(hello.bytes()[:20])} {
		for _, leaves := range []bool{true, false} {
			var conn net.Conn
			require.Eventually(t, func() (ok bool) {
				var err error
				conn, err = net.Dial("tcp", net.JoinHostPort(cfg.Addr, itoa(cfg.Port)))
				return err == nil
			}, 10*time.Second, time.Millisecond)
			_, _ = io.WriteString(conn, say)
			if leaves {
				_ = conn.Close()
			} else {
				defer func() { _ = conn.Close() }()
			}
		}
	}
	_, errs := meet(ctx, cfg, nil, 1, 2)
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	group.Wait()
	require.Less(t, time.Since(began), patience)
}

// TestCollectiveRendezvousRefuses a rank that comes twice, has another size or token, or is of
// another start. The refusals do not affect the other ranks.
func TestCollectiveRendezvousRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		class  error
		words  string
	}{
		"twice":   {func(c *Config) { c.Rank = 1 }, device.ErrMismatch, "rank 1 of 3 has connected already"},
		"size":    {func(c *Config) { c.Rank, c.Size = 2, 4 }, device.ErrMismatch, "its size is 4, rank 0's is 3"},
		"attempt": {func(c *Config) { c.Rank, c.Attempt = 2, "2" }, device.ErrMismatch, "another start"},
		"token":   {func(c *Config) { c.Rank, c.Token = 2, "" }, errRefused, "a different token"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := free(t, 3)
			ctx := within(t, 20*time.Second)
			var group sync.WaitGroup
			group.Go(func() {
				if _, err := Exchange(ctx, cfg, []byte("id")); err != nil {
					t.Error(err)
				}
			})
			first := cfg
			first.Rank = 1
			_, err := Exchange(ctx, first, nil)
			require.NoError(t, err)
			wrong := cfg
			c.change(&wrong)
			_, err = Exchange(ctx, wrong, nil)
			require.ErrorIs(t, err, c.class)
			require.ErrorContains(t, err, c.words)
			last := cfg
			last.Rank = 2
			id, err := Exchange(ctx, last, nil)
			require.NoError(t, err)
			require.Equal(t, "id", string(id))
			group.Wait()
		})
	}
}

// TestCollectiveRendezvousIsToldNothing: a rank 0 without the token can't pass an id to ranks with
// a token, and the token is never sent.
func TestCollectiveRendezvousIsToldNothing(t *testing.T) {
	cfg := free(t, 2)
	l, err := net.Listen("tcp", net.JoinHostPort(cfg.Addr, itoa(cfg.Port)))
	require.NoError(t, err)
	heard := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		h := readHello(conn)
		nonce := make([]byte, nonceSize)
		_, _ = conn.Write(append([]byte(magic), nonce...))
		proof := make([]byte, 32)
		_, _ = io.ReadFull(conn, proof)
		said := (&reply{text: []byte("my id")}).bytes()
		_, _ = conn.Write(append(said, prove("a guess", "server", h, nonce, said)...))
		rest, _ := io.ReadAll(conn)
		heard <- append(append(h.bytes(), proof...), rest...)
		_ = conn.Close()
	}()
	cfg.Rank = 1
	_, err = Exchange(within(t, 20*time.Second), cfg, nil)
	require.ErrorIs(t, err, errRefused)
	require.NotContains(t, string(<-heard), cfg.Token)
	require.NoError(t, l.Close())
}

// TestCollectiveRendezvousEnds with its context on both sides, with an error that names the missing
// ranks.
func TestCollectiveRendezvousEnds(t *testing.T) {
	cfg := free(t, 4)
	_, errs := meet(within(t, 300*time.Millisecond), cfg, []byte("id"), 0, 2)
	require.ErrorIs(t, errs[0], device.ErrTimeout)
	require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	require.ErrorContains(t, errs[0], "ranks [1 3] did not connect")
	require.NoError(t, errs[1])
	cfg = free(t, 2)
	_, errs = meet(within(t, 200*time.Millisecond), cfg, nil, 1)
	require.ErrorIs(t, errs[0], device.ErrTimeout)
	require.ErrorContains(t, errs[0], "rank 0 did not answer on 127.0.0.1")

	l, err := net.Listen("tcp", net.JoinHostPort(cfg.Addr, itoa(cfg.Port)))
	require.NoError(t, err)
	_, errs = meet(within(t, time.Second), cfg, []byte("id"), 0)
	require.ErrorContains(t, errs[0], "CISTERN_MASTER_PORT")
	require.NoError(t, l.Close())
	for _, wrong := range []Config{{}, {Rank: 1, Size: 1}, {Rank: -1, Size: 2}, {Size: 2}, {Size: 2, Addr: "localhost", Port: 70000},
		{Size: maxRanks + 1, Addr: "localhost", Port: 1}} {
		_, err := Exchange(t.Context(), wrong, nil)
		require.ErrorIs(t, err, device.ErrInvalid)
	}
	_, err = Exchange(t.Context(), cfg, make([]byte, MaxID+1))
	require.ErrorIs(t, err, device.ErrInvalid)
}

// TestCollectiveRendezvousJoins a communicator. Here each rank is a goroutine instead of a process.
func TestCollectiveRendezvousJoins(t *testing.T) {
	cfg := free(t, 3)
	var group sync.WaitGroup
	for r := range cfg.Size {
		group.Go(func() {
			mine := cfg
			mine.Rank = r
			d, err := host.New(host.Config{Capacity: 1 << 20})
			if err != nil {
				t.Error(err)
				return
			}
			c, err := Join(within(t, 20*time.Second), mine, d, device.CommunicatorOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if c.Rank() != r || c.Size() != 3 {
				t.Errorf("rank %d of %d", c.Rank(), c.Size())
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}
