// Package analysis turns the records of a run into its Summary: each figure of
// the measurement contract, with its interval and its warnings. Most people
// need two names: New makes a Summarizer that records are added to, in any
// order and as they stream by; Summary is what it gives.
//
// It reads no file and prints nothing: what is doubtful about a number travels
// with it, as an interval, a count or a Finding, and package report puts it on
// a page. It keeps a few numbers per turn and never a turn's events, so that a
// run of ten million turns fits in memory.
package analysis
