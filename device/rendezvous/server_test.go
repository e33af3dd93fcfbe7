package rendezvous

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a listener with connections inside the process, so that they follow a test's clock.
type pipes struct {
	*server
	conns chan net.Conn
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return nil }

// accepting returns rank 0 of cfg, which accepts until the test ends, by the test's clock.
func accepting(t *testing.T, test func(t *testing.T, p *pipes)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{newServer(Config{Size: 3, Token: "a secret", Attempt: "1"}, []byte("the id")), make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { p.accept(ctx, p, &group) })
		end := sync.OnceFunc(func() {
			cancel()
			close(p.ended)
			group.Wait()
		})
		defer end()
		test(t, p)
		end()
		require.Empty(t, append(p.silent, p.greeted...), "all are forgotten")
		require.Empty(t, p.proven)
	})
}

func (p *pipes) connect() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// stranger connects, sends some bytes, and reports whether its connection is still open.
func (p *pipes) stranger(say []byte) (there func() bool) {
	conn := p.connect()
	var closed sync.WaitGroup
	gone := make(chan struct{})
	closed.Go(func() {
		_, _ = conn.Write(say)
		_, _ = io.Copy(io.Discard, conn)
		close(gone)
	})
	return func() bool {
		synctest.Wait()
		select {
		case <-gone:
			return false
		default:
			return true
		}
	}
}

func (p *pipes) hello(rank int) *hello {
	h := &hello{rank: rank, size: 3, attempt: sha256.Sum256([]byte("1"))}
	_, _ = rand.Read(h.nonce[:])
	return h
}

// meets lets a rank get the id, which takes no time.
func (p *pipes) meets(t *testing.T, rank int) {
	t.Helper()
	began := time.Now()
	id, err := converse(t.Context(), p.connect(), p.cfg, p.hello(rank))
	require.NoError(t, err)
	require.Equal(t, "the id", string(id))
	require.Equal(t, began, time.Now())
}

// TestCollectiveRendezvousIsNotKeptBusy: strangers that send nothing, or only a hello, keep no rank
// out. If there are too many of a kind, the oldest connection is closed. The others are closed when
// their time is over, however slowly they send.
func TestCollectiveRendezvousIsNotKeptBusy(t *testing.T) {
	accepting(t, func(t *testing.T, p *pipes) {
		most := p.cfg.Size + spare
		greeted := p.stranger(p.hello(2).bytes())
		require.True(t, greeted())
		var silent []func() bool
		for i := range most + 10 {
			silent = append(silent, p.stranger(make([]byte, i%helloSize)))
			synctest.Wait()
		}
		for i, there := range silent {
			require.Equal(t, i >= 10, there(), i)
		}
		require.True(t, greeted(), "which has said more than they have")
		p.meets(t, 1)
		for i, there := range silent {
			require.Equal(t, i >= 11, there(), i)
		}
		for range most {
			p.stranger(p.hello(2).bytes())
			synctest.Wait()
		}
		require.False(t, greeted())
		require.True(t, silent[11]())
		p.meets(t, 2)
		<-p.all

		time.Sleep(introduction)
		for _, there := range silent {
			require.False(t, there())
		}
		slow, taken := p.connect(), 0
		for _, b := range p.hello(2).bytes() {
			if _, err := slow.Write([]byte{b}); err != nil {
				break
			}
			taken++
			time.Sleep(introduction * 2 / 5)
		}
		require.Equal(t, 3, taken)
	})
}

// TestCollectiveRendezvousKeepsRanks: strangers can't displace a rank with a proof of the token,
// and a rank has one connection.
func TestCollectiveRendezvousKeepsRanks(t *testing.T) {
	accepting(t, func(t *testing.T, p *pipes) {
		h := p.hello(1)
		prove := func() net.Conn {
			conn := p.connect()
			_, err := conn.Write(h.bytes())
			require.NoError(t, err)
			answer := make([]byte, len(magic)+nonceSize)
			_, err = io.ReadFull(conn, answer)
			require.NoError(t, err)
			_, err = conn.Write(prove(p.cfg.Token, "client", h, answer[len(magic):], nil))
			require.NoError(t, err)
			r, err := readReply(conn)
			require.NoError(t, err)
			require.Equal(t, "the id", string(r.text))
			_, err = io.ReadFull(conn, make([]byte, sha256.Size))
			require.NoError(t, err)
			return conn
		}
		first := prove()
		second := prove()
		_, err := first.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		for range 3 * (p.cfg.Size + spare) {
			p.stranger(nil)
			p.stranger(p.hello(1).bytes())
		}
		time.Sleep(introduction + time.Second)
		_, err = second.Write([]byte{1})
		require.NoError(t, err)
		_, err = io.ReadFull(second, make([]byte, 1))
		require.NoError(t, err, "rank 0 confirms it")
		synctest.Wait()
		require.True(t, p.has[1])
		third := prove()
		time.Sleep(patience)
		_, err = third.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "it has not said that it has the id")
	})
}

// TestClientLeavesStrangers: a client leaves a silent server after its patience, and leaves at once
// if its context ends or the server is another program. It closes the connection, and sends nothing
// but its hello.
func TestClientLeavesStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		after time.Duration
		class error
	}{
		"silent":   {"", patience, os.ErrDeadlineExceeded},
		"slow":     {magic, patience, os.ErrDeadlineExceeded},
		"ended":    {"", patience / 2, io.ErrClosedPipe},
		"stranger": {strings.Repeat("HTTP", 100)[:len(magic)+nonceSize], 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				heard := make(chan []byte, 1)
				go func() {
					_ = readHello(there)
					_, _ = io.WriteString(there, c.says)
					rest, _ := io.ReadAll(there)
					heard <- rest
				}()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if name == "ended" {
					time.AfterFunc(c.after, cancel)
				}
				began := time.Now()
				_, err := converse(ctx, here, Config{Size: 2, Token: "a secret"}, &hello{rank: 1, size: 2})
				require.Error(t, err)
				if c.class != nil {
					require.ErrorIs(t, err, c.class)
				}
				require.Equal(t, c.after, time.Since(began))
				require.Empty(t, <-heard)
				require.NoError(t, there.Close())
			})
		})
	}
}

// TestProofs: a proof depends on the token, the side, the client, the connection and the message.
func TestProofs(t *testing.T) {
	type claim struct {
		token, side string
		hello       hello
		nonce, said []byte
	}
	h := hello{rank: 1, size: 3}
	first := claim{"a secret", "client", h, []byte{1}, []byte("id")}
	seen := map[string]int{}
	for i, change := range []func(c *claim){
		func(*claim) {},
		func(c *claim) { c.token = "another" },
		func(c *claim) { c.side = "server" },
		func(c *claim) { c.hello.rank = 2 },
		func(c *claim) { c.hello.size = 4 },
		func(c *claim) { c.hello.attempt[5] = 1 },
		func(c *claim) { c.hello.nonce[5] = 1 },
		func(c *claim) { c.nonce = []byte{2} },
		func(c *claim) { c.said = nil },
	} {
		c := first
		change(&c)
		proof := string(prove(c.token, c.side, &c.hello, c.nonce, c.said))
		require.Len(t, proof, sha256.Size)
		require.NotContains(t, seen, proof, i)
		seen[proof] = i
	}
}

// TestReplies: replies up to the longest are read as they were written. A longer one is refused by
// its length, and a truncated one is an error.
func TestReplies(t *testing.T) {
	for _, n := range []int{0, 1, MaxID - 1, MaxID} {
		sent := &reply{refused: n%2 == 1, text: bytes.Repeat([]byte{7}, n)}
		got, err := readReply(bytes.NewReader(sent.bytes()))
		require.NoError(t, err)
		require.Equal(t, sent, got)
		for _, cut := range []int{1, n + 1} {
			_, err = readReply(bytes.NewReader(sent.bytes()[:n+5-min(cut, n+5)]))
			require.Error(t, err)
		}
	}
	for _, n := range []uint32{MaxID + 1, math.MaxInt32, math.MaxUint32} {
		head := bytes.NewReader(binary.BigEndian.AppendUint32([]byte{0}, n))
		_, err := readReply(head)
		require.ErrorContains(t, err, fmt.Sprint(n, " bytes"))
	}
}
