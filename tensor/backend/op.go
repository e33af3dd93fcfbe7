package backend

import "strings"

// Op is an operation. The operations of a family have consecutive numbers, in the order of its
// names, which is the order of the codes of GPU kernels. Package gen writes the numbers.
type Op uint16

// Role is what an operation does with an operand.
type Role uint8

// An operand is read, overwritten, or both. Update is also the role of an operand that the
// operation writes in part.
const (
	Read Role = 1 << iota
	Write
	Update = Read | Write
)

// Family is a group of operations with the same operands, plan and parameters: a row of the table.
type Family uint8

// row is an operation in the table.
type row struct {
	name   string
	family Family
	code   int    // within the family
	roles  []Role // of Call.Args
	list   []Role // of each element of Call.List
	// base is the operation that the runtime queues, together with others, if a backend does not
	// support the fusion.
	base Op
}

// rows are the operations, after a row for NoOp. firsts are the first operations of the families.
var rows, firsts = func() (all []row, firsts []Op) {
	all = make([]row, 1)
	byName := map[string]Op{}
	for f, family := range families {
		firsts = append(firsts, Op(len(all)))
		args, list, _ := strings.Cut(family.operands, "|")
		for code, name := range strings.Split(family.ops, "; ") {
			byName[name] = Op(len(all))
			all = append(all, row{name, Family(f), code, roles(args), roles(list), NoOp})
		}
	}
	for i := range all[1:] {
		r := &all[1+i]
		r.base = byName[families[r.family].base]
	}
	return all, firsts
}()

// roles parses a list of operands: = means written, + updated, and no prefix read.
func roles(operands string) (all []Role) {
	for _, operand := range strings.Fields(operands) {
		role := Read
		switch operand[0] {
		case '=':
			role = Write
		case '+':
			role = Update
		}
		all = append(all, role)
	}
	return all
}

// Name returns the operation's name in errors, launches and profiles.
func (o Op) Name() string { return rows[o].name }

// Family returns the operation's family.
func (o Op) Family() Family { return rows[o].family }

// Code returns the operation's number within its family.
func (o Op) Code() int { return rows[o].code }

// Roles returns the roles of the operands, in their order.
func (o Op) Roles() []Role { return rows[o].roles }

// ListRoles returns the roles of the operands of each item of a list.
func (o Op) ListRoles() []Role { return rows[o].list }

// Base returns the operation that replaces a fusion, together with others; NoOp if the operation is
// not a fusion.
func (o Op) Base() Op { return rows[o].base }

// Rounds reports whether later parts of a fusion read results that its earlier parts round. In a
// dtype of 16 bits such a fusion is computed natively or in parts.
func (o Op) Rounds() bool { return families[rows[o].family].rounds }

// Of returns the operation of the family with this code.
func (f Family) Of(code int) Op { return firsts[f] + Op(code) }

// All returns the operations of the family.
func (f Family) All() (all []Op) {
	for op := firsts[f]; int(op) < len(rows) && rows[op].family == f; op++ {
		all = append(all, op)
	}
	return all
}

// NoOp is not an operation.
const NoOp Op = 0
