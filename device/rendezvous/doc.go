// Package rendezvous brings the ranks of a communicator together that are processes: it reads which rank this process is from what its launcher
// has set, and hands the communicator's id from rank 0 to the others.
//
//	cfg, err := rendezvous.FromEnvironment()
//	dev, err := device.Open(fmt.Sprintf("cuda:%d", cfg.LocalRank))
//	comm, err := rendezvous.Join(ctx, cfg, dev, device.CommunicatorOptions{})
//
// It is below package device, as what it makes is a [device.Communicator], and as it needs nothing of what is above; training by many is not its matter.
//
// # Launchers
//
// The first of these that is there says who this process is:
//
//   - RANK, WORLD_SIZE, LOCAL_RANK: torchrun, Kubernetes' PyTorchJob
//   - OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK: mpirun of Open MPI, in a job of Slurm too
//   - SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID: srun
//
// Without any the process is rank 0 of 1. One whose rank or size alone is missing is an error. So is RANK beside another launcher's rank that differs, unless
// torchrun has set it (TORCHELASTIC_RUN_ID), which such launchers may start. A missing local rank is 0, which is right for one process a machine.
//
// # Address and port
//
// Rank 0 listens on MASTER_ADDR and MASTER_PORT, and nowhere else, until all others have the id. With torchrun its agent on that machine already
// listens on MASTER_PORT, for PyTorch's store, and says so by TORCHELASTIC_USE_AGENT_STORE=True; then it is the port after it (before it, of 65535).
// Nobody has reserved that one, so it may be taken: CISTERN_MASTER_PORT names another, the same on all ranks.
//
// # Authentication
//
// With CISTERN_RENDEZVOUS_TOKEN, the same secret on all ranks, each side proves to the other that it
// has it (HMAC-SHA256 of nonces of both, and of what is said). The token is never sent. The id is sent
// in the clear, as NCCL's own connections are. Without a token whoever reaches the port can take a
// rank's place.
//
// The token must be long and random, such as the output of "openssl rand -hex 32", and a new one for
// each job: a listener on the network, or a program that answers in rank 0's place, gets a proof by
// which it can try tokens offline, as many as it has time for. A word or a password is found that way.
//
// A client that has not proved that it has the token keeps no rank out. Rank 0 reads at most 112 bytes
// of it and closes its connection after two seconds. Of clients that have said nothing it serves 64
// besides one for each rank, as of clients that have sent a hello; of more, the oldest connection is
// closed.
package rendezvous
