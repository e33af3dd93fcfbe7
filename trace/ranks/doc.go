// Package ranks puts the profiles of several ranks' steps together: who waits for whom, whose memory is where, and who is the straggler.
//
// Each rank writes the profiles of its steps, a [trace.StepProfile] as JSON on a line each, to a file of its own:
//
//	comm, err := tracer.Communicator(ctx, inner)
//	lines := json.NewEncoder(file)
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream, Communicator: comm, Holders: true,
//		OnProfile: func(p trace.StepProfile) { err = errors.Join(err, lines.Encode(p)) }})
//
// One of them, or the command trace/rankreport, reads all files ([Read], [ReadFiles]) and writes a table ([Report.Table]) or a page ([Report.HTML]). Profiles of ranks of one
// process may be added without files ([Merger]).
//
// # Who waits for whom
//
// A collective operation is over on all ranks at about the same time, and its time on a rank begins when the rank has come to it. So the rank with the shortest time came last; it waited for
// nobody. What the others' times have above it they waited for that rank. No clocks have to agree. An operation counts if all ranks have its time: operations are matched by their
// communicator and number. Who held up the others for the longest time, as told by the operations in which it came last and the rank that came just before it, is the straggler. Sends and receives, which not all ranks make, are not matched, nor is what was captured: operations of graphs that are replayed have no times, and are counted for each rank with their bytes.
//
// A file that ends in the middle of a line, as that of a program that was killed does, is read up to there. What files say is checked; they are taken for hostile.
package ranks
