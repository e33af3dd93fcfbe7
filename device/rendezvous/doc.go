// Package rendezvous connects ranks that are separate processes to one communicator. It reads this
// process's rank from the variables of its launcher, and sends the communicator's id from rank 0 to
// the other ranks.
//
//	cfg, err := rendezvous.FromEnvironment()
//	dev, err := device.Open(fmt.Sprintf("cuda:%d", cfg.LocalRank))
//	comm, err := rendezvous.Join(ctx, cfg, dev, device.CommunicatorOptions{})
//
// It makes a [device.Communicator] and depends only on package device. Distributed training is left
// to other packages.
//
// # Launchers
//
// The first of these groups that is set determines this process's rank:
//
//   - RANK, WORLD_SIZE, LOCAL_RANK: torchrun, Kubernetes' PyTorchJob
//   - OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK: mpirun of Open MPI,
//     also in a job of Slurm
//   - SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID: srun
//
// Without any of them the process is rank 0 of 1. If only one of rank and size is set, that is an
// error. It is also an error if RANK differs from another launcher's rank, unless torchrun has set
// it (TORCHELASTIC_RUN_ID), because such launchers may start torchrun. A missing local rank means
// 0, which is right for one process per machine.
//
// # Address and port
//
// Rank 0 listens only on MASTER_ADDR and MASTER_PORT, until all other ranks have the id. With
// torchrun, its agent already listens on MASTER_PORT for PyTorch's store, and sets
// TORCHELASTIC_USE_AGENT_STORE=True. Then rank 0 uses the next port, or 65534 if MASTER_PORT is
// 65535. That port is not reserved, so it may be in use: set CISTERN_MASTER_PORT to another port,
// the same on all ranks.
//
// # Authentication
//
// With CISTERN_RENDEZVOUS_TOKEN, the same secret on all ranks, each side proves to the other that
// it has the token, by an HMAC-SHA256 of both sides' nonces and the messages. The token is never
// sent. The id is sent in the clear, like the data of NCCL's own connections. Without a token any
// process that reaches the port can take a rank's place.
//
// The token must be long and random, such as the output of "openssl rand -hex 32", and a new one
// for each job. A listener on the network, or a program that answers instead of rank 0, gets a
// proof with which it can try any number of tokens offline. It would find a word or a password that
// way.
//
// A client without a proof of the token can't keep a rank out. Rank 0 reads at most 112 bytes from
// it and closes its connection after two seconds. Rank 0 serves at most 64 clients that have sent
// nothing, plus one for each rank, and as many that have sent a hello. If there are more, it closes
// the oldest connection.
package rendezvous
