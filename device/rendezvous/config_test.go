package rendezvous

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestCollectiveEnvironment reads the variables of each launcher, and mistakes in them.
func TestCollectiveEnvironment(t *testing.T) {
	const master = " MASTER_ADDR=node1 MASTER_PORT=29500"
	at := func(rank, size, local, port int) Config {
		return Config{Rank: rank, Size: size, LocalRank: local, Addr: "node1", Port: port, Attempt: "/"}
	}
	for variables, want := range map[string]Config{
		"": {Size: 1, Attempt: "/"},
		"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1" + master:                                           at(3, 4, 1, 29500),
		"RANK=3 WORLD_SIZE=4" + master:                                                        at(3, 4, 0, 29500),
		"RANK=0 WORLD_SIZE=1":                                                                 {Size: 1, Attempt: "/"},
		"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1" + master:                              at(5, 8, 1, 29500),
		"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2" + master: at(2, 4, 2, 29500),
		"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 SLURM_PROCID=0 SLURM_NTASKS=1" + master: at(2, 4, 2, 29500),
		"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0" + master:                           at(1, 2, 1, 29500),
		"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 TORCHELASTIC_USE_AGENT_STORE=True" + master:                                       at(1, 2, 1, 29501),
		"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 TORCHELASTIC_USE_AGENT_STORE=False" + master:                                      at(1, 2, 1, 29500),
		"RANK=1 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True CISTERN_MASTER_PORT=4000" + master:                           at(1, 2, 0, 4000),
		"RANK=1 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True MASTER_ADDR=node1 MASTER_PORT=65535":                         at(1, 2, 0, 65534),
		"RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x TORCHELASTIC_RESTART_COUNT=2 SLURM_PROCID=0 SLURM_NTASKS=1" + master:     {Rank: 1, Size: 2, Addr: "node1", Port: 29500, Attempt: "x/2"},
		"RANK=1 WORLD_SIZE=2 CISTERN_RENDEZVOUS_TOKEN=s" + master:                                                           {Rank: 1, Size: 2, Addr: "node1", Port: 29500, Attempt: "/", Token: "s"},
	} {
		got, err := fromVariables(lookUp(variables))
		require.NoError(t, err, variables)
		require.Equal(t, want, got, variables)
	}
	for variables, words := range map[string][]string{
		"RANK=1":                                                                     {"WORLD_SIZE is not set", "RANK=1"},
		"WORLD_SIZE=2" + master:                                                      {"RANK is not set"},
		"SLURM_PROCID=1" + master:                                                    {"SLURM_NTASKS is not set"},
		"RANK=2 WORLD_SIZE=2" + master:                                               {"RANK=2", "WORLD_SIZE=2"},
		"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2" + master:                                  {"LOCAL_RANK=2"},
		"RANK=-1 WORLD_SIZE=2" + master:                                              {`RANK="-1"`},
		"RANK=a WORLD_SIZE=2" + master:                                               {`RANK="a"`},
		"RANK=0 WORLD_SIZE=2 MASTER_PORT=1":                                          {"MASTER_ADDR is not set"},
		"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x":                                          {`MASTER_PORT=""`},
		"RANK=0 WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=65536":                        {`MASTER_PORT="65536"`},
		"RANK=0 WORLD_SIZE=2 CISTERN_MASTER_PORT=x" + master:                         {`CISTERN_MASTER_PORT="x"`},
		"RANK=0 WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2" + master:                 {"RANK=0", "SLURM_PROCID=1"},
		"RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4" + master: {"WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=4"},
	} {
		_, err := fromVariables(lookUp(variables))
		require.ErrorIs(t, err, device.ErrInvalid, variables)
		for _, w := range words {
			require.ErrorContains(t, err, w)
		}
	}
}

// lookUp is an environment of variables.
func lookUp(variables string) func(string) string {
	return func(name string) string {
		for _, v := range strings.Fields(variables) {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
}
