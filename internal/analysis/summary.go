package analysis

// Schema names this version of summary.json.
const Schema = "trueload.summary/1"

// Summary is what summary.json holds: all that a program needs to know of a
// run. The JSON names are promised. Times are in seconds, rates per second,
// shares 0 to 1; a nil pointer is null and means that the figure does not
// exist, which zero never does.
type Summary struct {
	Schema     string     `json:"schema"`
	Run        RunFacts   `json:"run"`
	Verdict    Verdict    `json:"verdict"`
	Window     Window     `json:"window"`
	Counts     Counts     `json:"counts"`
	Attempts   Attempts   `json:"attempts"`
	Rates      Rates      `json:"rates"`
	Latency    Latency    `json:"latency"`
	Tokens     Tokens     `json:"tokens"`
	Throughput Throughput `json:"throughput"`
	SLO        SLOResult  `json:"slo"`
	Prefix     *Prefix    `json:"prefix"`
	Slices     []Slice    `json:"slices"`
	Series     Series     `json:"series"`
	Replicas   []Replica  `json:"replicas"`
	Generator  Generator  `json:"generator"`
	Findings   []Finding  `json:"findings"`
}

// RunFacts are what the caller knows of the run; they pass through unchanged.
type RunFacts struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	StartedAt string `json:"started_at"` // RFC 3339, UTC
	PlanHash  string `json:"plan_hash"`
	Seed      uint64 `json:"seed"`
	Salt      string `json:"salt"`
	// Synthetic is set where text or lengths were generated; NotReproduced then
	// lists what of production the run did not have.
	Synthetic     bool              `json:"synthetic"`
	NotReproduced []string          `json:"not_reproduced"`
	Labels        map[string]string `json:"labels,omitempty"`
}

// Verdict says whether the instrument worked (Valid) and, apart from that,
// whether the SLO was met.
type Verdict struct {
	Valid          bool     `json:"valid"`
	InvalidReasons []string `json:"invalid_reasons"`
	SLO            Judgment `json:"slo"`
	// Limits are the validity limits that applied, to be printed with the verdict.
	Limits AppliedLimits `json:"limits"`
}

// AppliedLimits are the validity limits of this run, worked out from its own
// median service TTFT and median gap.
type AppliedLimits struct {
	LatenessP99   float64 `json:"lateness_p99_s"`
	StampWidthP99 float64 `json:"stamp_width_p99_s"`
}

// Judgment is a gate's answer.
type Judgment string

const (
	Pass         Judgment = "pass"         // the interval's bad end is inside the limit
	Fail         Judgment = "fail"         // its good end is outside
	Inconclusive Judgment = "inconclusive" // it straddles the limit
	NoVerdict    Judgment = "none"         // nothing was asked
)

// Window is the measured window: all measured phases.
type Window struct {
	Start    float64 `json:"start_s"`
	End      float64 `json:"end_s"`
	Measured float64 `json:"measured_s"` // seconds in measured phases
	// Batches is into how many blocks of equal length the window was cut for
	// the intervals.
	Batches int           `json:"batches"`
	Phases  []WindowPhase `json:"phases"`
	Judged
}

// Judged says whether the load met a target at rest. Null: not judged (a
// closed loop, a rate that changes, too few turns). Of the window: false, or for
// Saturated true, where it is so in one of its phases, else null where one of
// them was not judged.
type Judged struct {
	Steady    *bool `json:"steady"`    // no trend in throughput and TTFT
	Stable    *bool `json:"stable"`    // requests in flight do not grow without end
	Saturated *bool `json:"saturated"` // they do: every latency is a function of the run's length
}

// Steadiness is a phase's judgment and what it rests on.
type Steadiness struct {
	Judged
	Tests []PhaseTest `json:"tests"`
	// In flight at the two ends of the phase: turns due and not ended, those that
	// wait for the in-flight cap included.
	InFlightStart *int64 `json:"in_flight_start"`
	InFlightEnd   *int64 `json:"in_flight_end"`
	// TransientEnd is where the start-up ended, by MSER-5 on requests in flight
	// from the run's start to the end of its first measured phase, which alone
	// has it; null where it would cut more than half.
	TransientEnd *float64 `json:"transient_end_s"`
	// WarmedUp is false where the beginning of the phase still belonged to it.
	WarmedUp *bool `json:"warmed_up"`
}

// PhaseTest is one test over the blocks of a phase.
type PhaseTest struct {
	Series    string  `json:"series"` // throughput | ttft_p50 | in_flight
	Test      string  `json:"test"`   // its name
	Statistic float64 `json:"statistic"`
	P         float64 `json:"p"`
	Level     float64 `json:"level"` // it alarms where P is below
}

// WindowPhase is one phase of the run, measured or not.
type WindowPhase struct {
	Name     string   `json:"name"`
	Start    float64  `json:"start_s"`
	End      float64  `json:"end_s"`
	Measured bool     `json:"measured"`
	Constant bool     `json:"constant"`
	Rate     *float64 `json:"rate"` // planned, sessions per second
	Steadiness
}

// Counts are the outcomes of the turns scheduled inside the window. The twelve
// sum to Planned.
type Counts struct {
	Planned      int64 `json:"planned"`
	OK           int64 `json:"ok"`
	Rejected     int64 `json:"rejected"`
	HTTPError    int64 `json:"http_error"`
	StreamError  int64 `json:"stream_error"`
	Empty        int64 `json:"empty"`
	Timeout      int64 `json:"timeout"`
	ConnectError int64 `json:"connect_error"`
	Cancelled    int64 `json:"cancelled"`
	Unfinished   int64 `json:"unfinished"`
	Shed         int64 `json:"shed"`
	Skipped      int64 `json:"skipped"`
	NotDue       int64 `json:"not_due"`
}

// Attempts counts sendings, and the sessions they made up.
type Attempts struct {
	Sent       int64    `json:"sent"`       // turns of the window that were sent
	Reconnects int64    `json:"reconnects"` // a dead reused connection was replaced
	Retries    int64    `json:"retries"`
	Sessions   Sessions `json:"sessions"`
}

// Sessions counts the sessions whose first turn lies in the window.
type Sessions struct {
	Planned  int64 `json:"planned"`
	Complete int64 `json:"complete"` // every turn ok
	AllGood  int64 `json:"all_good"` // every turn good
	// Attainment is AllGood over the sessions that could be judged: a skipped
	// turn is a miss; a session with a turn that was not due, unjudged or hung
	// up on as planned, and no miss, leaves the denominator.
	Attainment Share `json:"attainment"`
}

// Rates are per second of window. The five are turns.
type Rates struct {
	FiveRates
	Sessions FiveRates `json:"sessions"`
	IDC      IDC       `json:"idc"`
}

// FiveRates are five figures, never one.
type FiveRates struct {
	Offered    *float64 `json:"offered"`    // due inside the window
	Dispatched *float64 `json:"dispatched"` // sent inside the window
	Completed  *float64 `json:"completed"`  // ended ok inside the window
	Rejected   *float64 `json:"rejected"`   // rejected inside the window
	Failed     *float64 `json:"failed"`     // failed in another way inside the window
}

// IDC is the index of dispersion of session arrivals: variance over mean of
// their counts in bins; 1 for a Poisson process, 0 for a constant rate.
type IDC struct {
	Asked     IDCAt `json:"asked"`     // of the planned times
	Delivered IDCAt `json:"delivered"` // of the times the pacer released them
}

// IDCAt is by width of the bins; null where the window holds fewer than ten.
type IDCAt struct {
	At1  *float64 `json:"1"`
	At10 *float64 `json:"10"`
	At60 *float64 `json:"60"`
}

// Latency holds the twelve figures of the measurement contract.
type Latency struct {
	TTFT        Figure `json:"ttft_s"`
	ServiceTTFT Figure `json:"service_ttft_s"`
	FirstAnswer Figure `json:"first_answer_s"`
	TPOT        Figure `json:"tpot_s"`
	ITL         Figure `json:"itl_s"`
	Gap         Figure `json:"gap_s"`
	Stall       Figure `json:"stall_s"`
	E2E         Figure `json:"e2e_s"`
	Lateness    Figure `json:"lateness_s"`
	CapWait     Figure `json:"cap_wait_s"`
	Connect     Figure `json:"connect_s"`
	SendDelay   Figure `json:"send_delay_s"`
}

// Figure is one latency over all offered turns, and over those that were ok.
type Figure struct {
	All Distribution `json:"all"`
	OK  Distribution `json:"ok"`
}

// Distribution describes one figure over a set of turns (of ITL and gap: over
// tokens and gaps). Quantiles are nearest rank.
type Distribution struct {
	// N counts the values, those that are missing and taken as longer than any included.
	N int64 `json:"n"`
	// Missing counts the turns that did not come back, for the figures that take
	// them as longer than any that did (ttft, first_answer, e2e).
	Missing int64 `json:"missing"`
	// Undefined counts the turns that were sent and have no such figure (the
	// TPOT of a reply that came in one event). They are not in N.
	Undefined int64 `json:"undefined"`
	// NEffective is N over the design effect; null for pooled ITL and gaps, which
	// are not independent and take no interval.
	NEffective *float64 `json:"n_effective"`
	// BlocksAlike is set where neighbouring batches are alike beyond chance: the
	// window is too short for them to be independent, and its intervals too narrow.
	BlocksAlike bool       `json:"blocks_alike"`
	Mean        *float64   `json:"mean"` // null where values are missing
	P50         Quantile   `json:"p50"`
	P90         Quantile   `json:"p90"`
	P95         Quantile   `json:"p95"`
	P99         Quantile   `json:"p99"`
	P999        Quantile   `json:"p999"`
	Max         *float64   `json:"max"`       // null where values are missing
	Histogram   *Histogram `json:"histogram"` // of the values that exist; null in slices
}

// Quantile is one quantile with its two-sided 95 % interval.
type Quantile struct {
	// Value is a lower bound where Censored is set: the quantile is a turn that
	// did not come back. It is null where not even a bound is known.
	Value *float64 `json:"value"`
	Low   *float64 `json:"low"`  // null: the sample gives no lower end
	High  *float64 `json:"high"` // null: the sample gives no finite upper end
	// More is how many further turns like these would give a finite upper end;
	// null where there is one, or where no number would give it.
	More     *int64 `json:"more"`
	Censored bool   `json:"censored"`
}

// Histogram counts values in log-linear buckets at most 1/64 wide, relative to
// their lower end; empty buckets are left out. Histograms of two runs or
// machines add bucket by bucket.
type Histogram struct {
	Lower []float64 `json:"lower"` // inside
	Upper []float64 `json:"upper"` // outside
	Count []int64   `json:"count"`
}

// Share is a proportion with its two-sided 95 % interval.
type Share struct {
	Value      *float64 `json:"value"`
	Low        *float64 `json:"low"`
	High       *float64 `json:"high"`
	N          int64    `json:"n"`
	NEffective *float64 `json:"n_effective"`
	// BlocksAlike is as in Distribution; no gate passes on such a share.
	BlocksAlike bool `json:"blocks_alike"`
}

// Tokens are over the ok turns of the window.
type Tokens struct {
	Input     TokenFigure `json:"input"`
	Output    TokenFigure `json:"output"`
	Reasoning TokenFigure `json:"reasoning"` // part of output
	Cached    TokenFigure `json:"cached"`    // part of input, as the server reported it
	// Source counts the turns by where their output count comes from.
	Source map[string]int64 `json:"source"`
}

// TokenFigure sets what was asked beside what was delivered. Asked is null for
// reasoning and cached tokens.
type TokenFigure struct {
	Asked     *TokenDistribution `json:"asked"`
	Delivered *TokenDistribution `json:"delivered"`
}

// TokenDistribution describes whole token counts; turns with an unknown count
// are not in N.
type TokenDistribution struct {
	N     int64    `json:"n"`
	Total int64    `json:"total"`
	Mean  *float64 `json:"mean"`
	P50   *int64   `json:"p50"`
	P90   *int64   `json:"p90"`
	P95   *int64   `json:"p95"`
	P99   *int64   `json:"p99"`
	Max   *int64   `json:"max"`
}

// Throughput counts what happened inside the window, per second of window.
type Throughput struct {
	OutputTokens *float64 `json:"output_tokens"`
	InputTokens  *float64 `json:"input_tokens"`
	TotalTokens  *float64 `json:"total_tokens"`
	Requests     *float64 `json:"requests"`
}

// SLOResult says how the service level asked for was met.
type SLOResult struct {
	Objectives []ObjectiveResult `json:"objectives"`
	Target     *float64          `json:"target"` // the attainment asked for
	Attainment Share             `json:"attainment"`
	// Judgment is the answer on Attainment against Target alone.
	Judgment Judgment `json:"verdict"`
	// More is how many further turns like these would settle an inconclusive
	// attainment; null where it is settled or cannot be.
	More                *int64     `json:"more"`
	Good                int64      `json:"good"`
	Unjudged            int64      `json:"unjudged"`          // a figure exists but could not be measured
	CensoredHangUps     int64      `json:"censored_hang_ups"` // hung up on as planned, with nothing missed before
	ErrorShare          *float64   `json:"error_share"`       // neither ok nor cancelled, of the offered turns that the plan did not cancel
	GoodputRequests     *float64   `json:"goodput_requests"`
	GoodputOutputTokens *float64   `json:"goodput_output_tokens"`
	Violations          Violations `json:"violations"`
}

// ObjectiveResult is one objective and how it was met.
type ObjectiveResult struct {
	Figure   string  `json:"figure"`
	Quantile string  `json:"quantile"` // "p99"; empty: an objective of each request
	Class    string  `json:"class"`    // empty: of every class without its own
	Limit    float64 `json:"limit_s"`
	// Met is the share of turns within the limit, of those that have the figure.
	Met Share `json:"met"`
	// Observed is the run's quantile; null for an objective of each request.
	Observed *Quantile `json:"observed"`
	// Judgment is "none" for an objective of each request: the attainment
	// judges those together.
	Judgment Judgment `json:"verdict"`
	// More is how many further turns like these would settle an inconclusive one.
	More *int64 `json:"more"`
}

// Violations counts misses. A request that misses two objectives counts under both.
type Violations struct {
	ByObjective map[string]int64 `json:"by_objective"`
	ByOutcome   map[string]int64 `json:"by_outcome"`
}

// Prefix is about reuse, in tokens that an engine could skip; the caller fills it in.
type Prefix struct {
	Asked               *float64   `json:"asked"`
	Attainable          *float64   `json:"attainable"`
	PlannedInfinite     *float64   `json:"planned_infinite"`
	PlannedLRU          PlannedLRU `json:"planned_lru"`
	ObservedEngine      *float64   `json:"observed_engine"`
	ObservedUsage       *float64   `json:"observed_usage"`
	TemplateFloorTokens *int64     `json:"template_floor_tokens"`
	CacheState          string     `json:"cache_state"` // cold | warm | unknown, at the start
}

// PlannedLRU brackets the routing: one shared cache, and random routing over the replicas.
type PlannedLRU struct {
	Shared *float64 `json:"shared"`
	Split  *float64 `json:"split"`
}

// Slice is the run seen through one key.
type Slice struct {
	By      string    `json:"by"` // class | phase | input_tokens | output_tokens | tenant | priority | model
	Value   string    `json:"value"`
	Counts  Counts    `json:"counts"`
	Latency Latency   `json:"latency"` // without histograms, ITL and gaps
	SLO     SLOResult `json:"slo"`
}

// Series are columns, one entry per whole second of the run from its start,
// phases outside the window included.
type Series struct {
	Second     []int64    `json:"t_s"`
	Offered    []int64    `json:"offered"`
	Dispatched []int64    `json:"dispatched"`
	Completed  []int64    `json:"completed"`
	Failed     []int64    `json:"failed"`     // rejected ones included
	InFlight   []float64  `json:"in_flight"`  // sent and not done, mean over the second
	Tokens     []float64  `json:"tokens"`     // output tokens
	TTFTP50    []*float64 `json:"ttft_p50_s"` // of the turns due in that second; null where it is a turn that did not come back
	TTFTP95    []*float64 `json:"ttft_p95_s"`
}

// Replica is one server's own account; the caller fills it in.
type Replica struct {
	Name    string          `json:"name"`
	Engine  string          `json:"engine"`
	Version string          `json:"version"`
	Metrics []ReplicaMetric `json:"metrics"`
}

// ReplicaMetric is one common metric over the window.
type ReplicaMetric struct {
	Name   string   `json:"name"` // the common name
	Raw    []string `json:"raw"`  // the series it came from
	Unit   string   `json:"unit"`
	Delta  *float64 `json:"delta"` // increase of a counter over the window
	Mean   *float64 `json:"mean"`
	Max    *float64 `json:"max"`
	Resets int      `json:"resets"` // restarts seen
}

// Generator is what the instrument measured of itself. The caller fills in
// what records do not say.
type Generator struct {
	CPUShare        *float64         `json:"cpu_share"` // of one core's time times the cores it may use
	Steal           *float64         `json:"steal"`
	Throttled       *float64         `json:"throttled"`
	GCPauseMax      *float64         `json:"gc_pause_max_s"`
	LatenessP50     *float64         `json:"lateness_p50_s"`
	LatenessP99     *float64         `json:"lateness_p99_s"`
	LatenessMax     *float64         `json:"lateness_max_s"`
	StampSource     string           `json:"stamp_source"`  // kernel | read | mixed | simulated; empty: no stamps
	StampSources    map[string]int64 `json:"stamp_sources"` // turns by source
	StampWidthP50   *float64         `json:"stamp_width_p50_s"`
	StampWidthP99   *float64         `json:"stamp_width_p99_s"`
	StampWidthP999  *float64         `json:"stamp_width_p999_s"`
	Reads           int64            `json:"reads"`
	MultiEventReads int64            `json:"multi_event_reads"`
	RefusedStamps   int64            `json:"refused_stamps"`
	Retransmits     *int64           `json:"retransmits"`
	OpenFiles       *int64           `json:"open_files"`
	EventsPerSecond *float64         `json:"events_per_s"`
	LimitsHit       []string         `json:"limits_hit"` // local resources that ran out
}

// Severity says how much a finding matters.
type Severity string

const (
	Error   Severity = "error"   // the figures mislead
	Warning Severity = "warning" // read them with care
	Note    Severity = "note"    // worth knowing
)

// Finding is something that makes a result misleading, and what to do about it.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
}
