// Package diff compares the memory of two runs: by category, module and line at the moment when
// most was allocated, and by the peak of each step.
//
// [Read] takes two files, of one kind or of two: recordings of trace/record, snapshots of
// torch.cuda.memory._dump_snapshot, profiles of steps as trace/ranks reads them, and heap profiles
// of trace/heap. The command "cistern diff" prints the result, and [Write] makes a page of it.
//
// # Figures
//
// A file is reduced to its peaks, and to the holders of the memory when most was allocated:
//
//   - of a recording or snapshot as the page of trace/report shows it; a device of a file is
//     compared with that of the same place in the other file
//   - of profiles of steps, the highest step, for each rank; without lines
//   - of a heap profile the peak, or the memory in use if the profile has no peak, without that of
//     graphs, and if it has neither all that was handed out; without steps
//
// Modules are paths, and lines the innermost call of the program's own code. A dimension that one
// of the files lacks is not compared, and [Dimension.Missing] has the reason. Steps are compared by
// their numbers; those of one file alone are counted in the notes, since a longer run does not take
// more memory.
//
// A line that is in one file only is matched with one of the other file if both are of one function
// and source file, and no other line of it is left: then code above it has moved it.
//
// # Untrusted files
//
// Figures are checked, and [Options] bound the cost of each file.
package diff
