package rendezvous

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/device"
)

// Config describes this process's rank and the address of rank 0.
type Config struct {
	Rank, Size int
	// LocalRank is the rank among the processes of this machine. Programs choose their device by
	// it.
	LocalRank int
	// Addr and Port are the address at which rank 0 listens. They are not needed for a Size of 1.
	Addr string
	Port int
	// Token is a secret that all ranks share; without one it is empty. It must be long and random,
	// because a short one can be guessed offline.
	Token string
	// Attempt identifies the start of a job. Ranks of another start are refused.
	Attempt string

	network network // nil: TCP
}

// launchers lists the variables of rank, size and local rank.
var launchers = [][3]string{
	{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
	{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}

// FromEnvironment reads the variables that launchers set. Errors wrap [device.ErrInvalid] and name
// the variables.
func FromEnvironment() (Config, error) { return fromVariables(os.Getenv) }

func fromVariables(get func(string) string) (Config, error) {
	c := Config{Size: 1, Token: get("CISTERN_RENDEZVOUS_TOKEN"), Addr: get("MASTER_ADDR"), Attempt: get("TORCHELASTIC_RUN_ID") + "/" + get("TORCHELASTIC_RESTART_COUNT")}
	from := -1
	for i, names := range launchers {
		if get(names[0]) == "" && get(names[1]) == "" {
			continue
		}
		rank, size, local, err := ranksFrom(get, names)
		switch {
		case err != nil && from < 0:
			return Config{}, err
		case err != nil:
		case from < 0:
			c.Rank, c.Size, c.LocalRank = rank, size, local
			from = i
		case from == 0 && get("TORCHELASTIC_RUN_ID") == "" && (rank != c.Rank || size != c.Size):
			return Config{}, invalid("RANK=%d and WORLD_SIZE=%d, but %s=%d and %s=%d; unset those that are wrong", c.Rank, c.Size, names[0], rank, names[1], size)
		}
	}
	if c.Size == 1 {
		return c, nil
	}
	return c, c.address(get)
}

// ranksFrom reads the variables of one launcher.
func ranksFrom(get func(string) string, names [3]string) (rank, size, local int, err error) {
	for i, to := range []*int{&rank, &size, &local} {
		text := get(names[i])
		if text == "" && i == 2 {
			continue
		}
		if text == "" {
			return 0, 0, 0, invalid("%s is not set, but %s=%s; launchers set both", names[i], names[1-i], get(names[1-i]))
		}
		if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
			return 0, 0, 0, invalid("%s=%q is not an integer of at least 0", names[i], text)
		}
	}
	if rank >= size || local >= size {
		return 0, 0, 0, invalid("%s=%d and %s=%d of %s=%d; ranks are less than the size", names[0], rank, names[2], local, names[1], size)
	}
	return rank, size, local, nil
}

// address reads the address of rank 0.
func (c *Config) address(get func(string) string) error {
	if c.Addr == "" {
		return invalid("MASTER_ADDR is not set, and there are %d ranks; it is the address of rank 0's machine (with Slurm: the first line of scontrol show hostnames)", c.Size)
	}
	name := "CISTERN_MASTER_PORT"
	if get(name) == "" {
		name = "MASTER_PORT"
	}
	port, err := strconv.Atoi(get(name))
	if err != nil || port < 1 || port > 65535 {
		return invalid("%s=%q, and there are %d ranks; it must be a port, 1 to 65535, that is free on rank 0's machine", name, get(name), c.Size)
	}
	if agent := get("TORCHELASTIC_USE_AGENT_STORE"); name == "MASTER_PORT" && strings.EqualFold(agent, "true") {
		if port++; port > 65535 {
			port = 65534
		}
	}
	c.Port = port
	return nil
}

// maxRanks limits what rank 0 stores about clients. A hello has numbers up to 4,294,967,295.
const maxRanks = 1 << 20

func invalid(format string, args ...any) error {
	return fmt.Errorf("rendezvous: %w: %s", device.ErrInvalid, fmt.Sprintf(format, args...))
}

// check validates fields that a program may have set itself.
func (c *Config) check() error {
	switch {
	case c.Size > maxRanks:
		return invalid("%d ranks; the maximum is %d", c.Size, maxRanks)
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return invalid("rank %d of %d; ranks are 0 to the size less one", c.Rank, c.Size)
	case c.Size > 1 && (c.Addr == "" || c.Port < 1 || c.Port > 65535):
		return invalid("%d ranks, and rank 0 listens on %q, port %d; give Addr and a Port of 1 to 65535", c.Size, c.Addr, c.Port)
	}
	return nil
}
