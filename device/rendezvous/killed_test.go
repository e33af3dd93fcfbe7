package rendezvous

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
)

// waits is the time for which the ranks of these tests wait for each other.
const waits = 1500 * time.Millisecond

// TestOneRankProcess is the program of one rank's process, with the variables of a launcher.
func TestOneRankProcess(t *testing.T) {
	mode := os.Getenv("CISTERN_TEST_RANK")
	if mode == "" {
		t.Skip("run by TestCollectiveRendezvousKilled, in a process of its own")
	}
	cfg, err := FromEnvironment()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), waits)
	defer cancel()
	if mode == "stops" && cfg.Rank > 0 {
		for stopHalfway(ctx, cfg) != nil {
			time.Sleep(pause)
		}
		fmt.Println("has stopped")
		select {} // until it is killed
	}
	id, err := Exchange(ctx, cfg, []byte("the id of attempt "+cfg.Attempt))
	fmt.Printf("id %q, error %v\n", id, err)
}

// stopHalfway runs a client until it has the id and rank 0 does not know that.
func stopHalfway(ctx context.Context, cfg Config) error {
	h := &hello{rank: cfg.Rank, size: cfg.Size, attempt: sha256.Sum256([]byte(cfg.Attempt))}
	_, _ = rand.Read(h.nonce[:])
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(cfg.Addr, strconv.Itoa(cfg.Port)))
	if err != nil {
		return err
	}
	if _, err := conn.Write(h.bytes()); err != nil {
		return err
	}
	answer := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if _, err := conn.Write(prove(cfg.Token, "client", h, answer[len(magic):], nil)); err != nil {
		return err
	}
	_, err = readReply(conn)
	return err
}

// rankProcess is a running rank.
type rankProcess struct {
	cmd *exec.Cmd
	out bytes.Buffer
	end chan error
}

func startRank(t *testing.T, cfg Config, rank int, mode string) *rankProcess {
	t.Helper()
	p := &rankProcess{cmd: child.Command("^TestOneRankProcess$", "CISTERN_TEST_RANK="+mode, fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", cfg.Size),
		"LOCAL_RANK=0", "MASTER_ADDR="+cfg.Addr, fmt.Sprintf("MASTER_PORT=%d", cfg.Port), "CISTERN_RENDEZVOUS_TOKEN="+cfg.Token, "TORCHELASTIC_RUN_ID=run",
		"TORCHELASTIC_RESTART_COUNT="+cfg.Attempt, "CISTERN_MASTER_PORT=", "TORCHELASTIC_USE_AGENT_STORE=", "OMPI_COMM_WORLD_RANK=", "SLURM_PROCID="),
		end: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() { p.end <- p.cmd.Wait() }()
	return p
}

// over waits for the process, which must end within its own timeout, and returns its output.
func (p *rankProcess) over(t *testing.T) string {
	t.Helper()
	select {
	case <-p.end:
	case <-time.After(waits + 10*time.Second):
		_ = p.cmd.Process.Kill()
		<-p.end
		t.Fatalf("a rank was left hanging: %s", p.out.String())
	}
	return p.out.String()
}

// TestCollectiveRendezvousKilled: a process is killed while the others wait, at a random moment or
// halfway through the exchange. The others end in time with an error that names it, unless they
// have the id already. When all are started again, they meet on the same port.
func TestCollectiveRendezvousKilled(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := mathrand.New(mathrand.NewPCG(seed, 18))
			cfg := free(t, 3)
			cfg.Attempt = "0"
			victim, mode := int(seed)%3, "runs"
			if seed >= 3 {
				mode = "stops"
			}
			other := 1 + victim%2 // starts when the victim is dead; never rank 0
			var all [3]*rankProcess
			for rank := range all {
				if rank != other {
					how := "runs"
					if rank == victim {
						how = mode
					}
					all[rank] = startRank(t, cfg, rank, how)
				}
			}
			time.Sleep(time.Duration(random.Int64N(int64(600 * time.Millisecond))))
			if mode == "stops" && victim > 0 {
				time.Sleep(400 * time.Millisecond)
			}
			_ = all[victim].cmd.Process.Kill() // it may have the id already
			all[victim].over(t)
			all[other] = startRank(t, cfg, other, "runs")
			for rank, p := range all {
				said := ""
				if rank != victim {
					said = p.over(t)
				}
				switch {
				case rank == victim:
				case victim == 0 && rank == other:
					require.Contains(t, said, "rank 0 did not answer")
				case rank == 0 && mode == "stops":
					require.Contains(t, said, fmt.Sprintf("ranks [%d] did not connect", victim))
				case rank == 0:
					require.Regexp(t, fmt.Sprintf(`ranks \[%d\] did not connect|error <nil>`, victim), said)
				}
			}
			cfg.Attempt = "1"
			for rank := range all {
				all[rank] = startRank(t, cfg, rank, "runs")
			}
			for _, p := range all {
				require.Contains(t, p.over(t), `id "the id of attempt run/1", error <nil>`)
			}
		})
	}
}
