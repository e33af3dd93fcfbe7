// Package diff compares the memory of two runs: by category, module and line at the moment when
// most was allocated, and by the peak of each step.
//
// [Read] takes two files, of one kind or of two: recordings of trace/record, snapshots of
// torch.cuda.memory._dump_snapshot, profiles of steps as trace/ranks reads them, and heap profiles
// of trace/heap. The command "cistern diff" prints the result, and [Write] makes a page of it.
//
// # What is compared
//
// A file is reduced to its peaks, and to what held the memory at the peak of what is allocated:
//
//   - of a recording or snapshot as the page of trace/report shows it; a device of a file is
//     compared with that of the same place in the other file
//   - of profiles of steps, the highest step, for each rank; without lines
//   - of a heap profile the peak, or what is in use if the profile has no peak, without what graphs
//     hold, and if it has neither all that was handed out; without steps
//
// Modules are paths, and lines the innermost call of the program's own code. What one of the files
// does not have is not compared, and [Dimension.Missing] has the reason. Steps are compared by their
// numbers; those of one file alone are counted in the notes, since a longer run uses no more
// memory by that.
//
// A line that is in one file only is matched with one of the other file if both are of one function
// and source file, and no other line of it is left: then code above it has moved it.
//
// # Untrusted files
//
// Figures are checked, and [Options] bound what each file may cost.
package diff
