// Package ranks merges the step profiles of several ranks into one report: how long each rank
// waited for which other rank, which rank is the straggler, and where each rank's memory went.
//
// Each rank writes the profiles of its steps, a [trace.StepProfile] as JSON on a line each, to a
// file:
//
//	comm, err := tracer.Communicator(ctx, inner)
//	steps, err := profiledir.NewStepLog("rank-0.jsonl", false)
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{
//		Cache: cache, Stream: stream, Communicator: comm, Holders: true,
//		OnProfile: steps.Write,
//	})
//
// The command "cistern ranks" reads the files of all ranks, and writes a table or a page. So can a
// program: see [ReadFiles], [Report.Table] and [Report.HTML]. Ranks that are goroutines of one
// process need no files: a [Merger] takes their profiles.
//
// # Waiting
//
// A collective operation ends on all ranks at about the same time, and its time on a rank begins
// when the rank reaches it. So the rank with the shortest time came last, and did not wait. The
// excess of another rank's time is how long that rank waited for the last one. Clocks need not
// agree.
//
// Operations are matched by communicator and number, and count if all ranks report their time. A
// rank holds up the others for the time between its own arrival, if it comes last, and the arrival
// before it. Sends and receives are not matched, because only two ranks make them. Operations of
// replayed graphs have no times: they are counted for each rank, with their bytes.
//
// # The straggler
//
// In each operation some rank comes last, and some rank is last the most often. A straggler is a
// rank for which chance does not explain that. The operations of a step depend on each other, so
// the step is the unit: the rank that held up the others in it for the longest time came last in
// the step. A step in which two ranks held up the others for as long does not count.
//
// If all N ranks are alike, each is last in a step with the probability 1/N. So a rank is last in a
// number of steps that is binomially distributed, if steps are independent. P is the probability of
// its number or a larger one, times N, as N ranks are tested (Bonferroni's correction). A rank is
// the straggler if its P is below 0.01, and if it held up the others for 1 % of the steps' time or
// more. With two ranks that takes 8 steps at least, with three 6, and with eight 4.
//
// A rank that is slow for a while, and only as often as other ranks at other times, breaks the
// assumption that steps are independent: it can be named for the steps that were recorded.
//
// # Untrusted files
//
// A file that ends in the middle of a line, such as the file of a killed process, is read up to
// that line. Figures are checked, and [Options] bound the memory and the work that the files may
// cost. Memory grows in proportion to the files, except for about 1 MB for a report of 4,096 ranks,
// which is the largest.
package ranks
