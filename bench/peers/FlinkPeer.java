import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.PatternSelectFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;
import org.apache.parquet.column.ColumnReader;
import org.apache.parquet.column.Dictionary;
import org.apache.parquet.column.impl.ColumnReadStoreImpl;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.io.LocalInputFile;
import org.apache.parquet.io.api.Converter;
import org.apache.parquet.io.api.GroupConverter;
import org.apache.parquet.io.api.PrimitiveConverter;
import org.apache.parquet.schema.MessageType;

/**
 * One workload of `reprise bench peers` through Flink: as a CEP pattern, or as SQL with MATCH_RECOGNIZE.
 *
 * <p>Reads the Parquet files of the event log, the columns it needs and no others, each source task its own buckets in order
 * of SN. Matches are not written anywhere: each is hashed, and the hashes are added up. The time is taken from the first event
 * read to the last match, in a JVM that has run the same job on a part of the events before.
 */
public final class FlinkPeer {
    /** With one watermark per event, Flink is four times slower. */
    private static final int EVENTS_PER_WATERMARK = 100;

    /** No source runs further ahead of another: what waits for the slowest one's watermark is sorted again for every timer. */
    private static final long AHEAD = 1_000;

    /** The SN that each source has come to. */
    private static volatile AtomicLongArray reached = new AtomicLongArray(0);

    private static final int EVENTS_PER_REPORT = 2_000;

    // The job runs inside this JVM, so that its parts can leave their numbers here.
    private static final AtomicLong BEGAN = new AtomicLong();
    private static final AtomicLong ENDED = new AtomicLong();
    private static final LongAdder MATCHES = new LongAdder();
    private static final LongAdder DIGEST = new LongAdder();

    public static void main(String[] args) throws Exception {
        JsonNode job = new ObjectMapper().readTree(new File(args[0]));
        if (job.has("checkpoints")) {
            runOnACluster(job);
            return;
        }
        run(job, job.get("warm_up").asLong());
        run(job, job.get("events").asLong());
        double seconds = (ENDED.get() - BEGAN.get()) / 1e9;
        System.out.printf("{\"seconds\": %.6f, \"matches\": %d, \"digest\": \"%016x\"}%n", seconds, MATCHES.sum(), DIGEST.sum());
    }

    private static void run(JsonNode job, long events) throws Exception {
        BEGAN.set(0);
        ENDED.set(0);
        MATCHES.reset();
        DIGEST.reset();
        planned(job, events).execute("peer");
    }

    /** With a cluster that is up before the job is handed to it: a start after a failure finds one, too. */
    private static void runOnACluster(JsonNode job) throws Exception {
        MiniClusterConfiguration size =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(settings(job))
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(job.get("cores").asInt())
                        .build();
        try (MiniCluster cluster = new MiniCluster(size)) {
            cluster.start();
            say("ready");
            cluster.executeJobBlocking(planned(job, job.get("events").asLong()).getStreamGraph().getJobGraph());
        }
        say("done " + MATCHES.sum());
    }

    private static StreamExecutionEnvironment planned(JsonNode job, long events) {
        reached = new AtomicLongArray(job.get("cores").asInt());
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(job.get("cores").asInt(), settings(job));
        DataStream<Event> log = env.addSource(new LogSource(job.toString(), events), "log", TypeInformation.of(Event.class));
        if (job.has("window")) {
            log = log.flatMap(new Windows(job.get("window").get("size").asLong(), job.get("window").get("slide").asLong()));
        }
        DataStream<Long> matches = job.has("sql") ? sql(env, log, job) : cep(log, job);
        matches.map(new AddUp()).returns(Types.LONG).sinkTo(new DiscardingSink<>());
        return env;
    }

    private static Configuration settings(JsonNode job) {
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "disable");
        settings.set(PipelineOptions.OBJECT_REUSE, true);
        settings.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        settings.set(RestOptions.BIND_PORT, "0");
        if (job.has("checkpoints")) {
            JsonNode how = job.get("checkpoints");
            settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(how.get("every_ms").asLong()));
            settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, how.get("folder").asText());
            settings.set(
                    CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
            settings.set(StateBackendOptions.STATE_BACKEND, how.get("backend").asText());
            if (how.has("from")) {
                settings.set(StateRecoveryOptions.SAVEPOINT_PATH, how.get("from").asText());
            }
        }
        return settings;
    }

    /** A line for the process that watches, with the time of now. */
    private static void say(String what) {
        System.out.println(System.currentTimeMillis() + " " + what);
    }

    // Matches, of which only a hash is left

    /** Of the number of the window and the SNs, in order; bench/peers/digest.py does the same. */
    private static long hash(long window, Iterable<Long> sns) {
        long hash = mixed(window);
        for (long sn : sns) {
            hash = mixed(hash ^ sn);
        }
        return hash;
    }

    private static long mixed(long z) {
        z += 0x9e3779b97f4a7c15L;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    private static final class AddUp extends RichMapFunction<Long, Long> {
        @Override
        public Long map(Long hash) {
            MATCHES.increment();
            DIGEST.add(hash);
            return hash;
        }

        @Override
        public void close() {
            ENDED.accumulateAndGet(System.nanoTime(), Math::max);
        }
    }

    // CEP

    private static DataStream<Long> cep(DataStream<Event> log, JsonNode job) {
        List<String> names = new ArrayList<>();
        job.get("steps").forEach(step -> names.add(step.get("symbol").asText()));
        Pattern<Event, ?> pattern = job.get("rising").asBoolean() ? rising() : sequence(job.get("steps"));
        pattern = pattern.within(Duration.ofSeconds(job.get("within").asLong()));
        if (job.has("window")) {
            log = log.keyBy((KeySelector<Event, Long>) event -> event.w);
        } else if (job.get("keyed").asBoolean()) {
            log = log.keyBy((KeySelector<Event, String>) event -> event.key);
        }
        return CEP.pattern(log, pattern).select(new Hashes(names), Types.LONG);
    }

    private static Pattern<Event, ?> sequence(JsonNode steps) {
        Pattern<Event, Event> pattern = null;
        for (JsonNode step : steps) {
            String name = step.get("symbol").asText();
            if (pattern == null) {
                pattern = Pattern.begin(name, AfterMatchSkipStrategy.skipPastLastEvent());
            } else {
                if (!step.get("nots").asText().isEmpty()) {
                    pattern = pattern.notFollowedBy("not before " + name).where(new Fits(step.get("nots").asText()));
                }
                pattern = pattern.followedBy(name);
            }
            pattern = pattern.where(new Fits(step.get("types").asText()));
        }
        return pattern;
    }

    /** A R+ T of bench/peers/workloads.py: strictly one after the other, each R above the row before it, T below A. */
    private static Pattern<Event, ?> rising() {
        return Pattern.<Event>begin("A", AfterMatchSkipStrategy.skipPastLastEvent())
                .where(new Fits("a"))
                .next("R")
                .where(new Rises())
                .oneOrMore()
                .consecutive()
                .greedy()
                .next("T")
                .where(new FallsBelow());
    }

    private static final class Fits extends SimpleCondition<Event> {
        private final String types;

        Fits(String types) {
            this.types = types;
        }

        @Override
        public boolean filter(Event event) {
            return types.indexOf(event.type.charAt(0)) >= 0;
        }
    }

    private static final class Rises extends IterativeCondition<Event> {
        @Override
        public boolean filter(Event event, Context<Event> context) throws Exception {
            Event last = null;
            for (Event earlier : context.getEventsForPattern("R")) {
                last = earlier;
            }
            if (last == null) {
                last = context.getEventsForPattern("A").iterator().next();
            }
            return event.v > last.v;
        }
    }

    private static final class FallsBelow extends IterativeCondition<Event> {
        @Override
        public boolean filter(Event event, Context<Event> context) throws Exception {
            return event.v < context.getEventsForPattern("A").iterator().next().v;
        }
    }

    private static final class Hashes implements PatternSelectFunction<Event, Long> {
        private final List<String> names;

        Hashes(List<String> names) {
            this.names = names;
        }

        @Override
        public Long select(Map<String, List<Event>> match) {
            List<Long> sns = new ArrayList<>();
            for (String name : names) {
                match.get(name).forEach(event -> sns.add(event.sn));
            }
            return hash(match.get(names.get(0)).get(0).w, sns);
        }
    }

    // SQL

    private static DataStream<Long> sql(StreamExecutionEnvironment env, DataStream<Event> log, JsonNode job) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        // v may be null, or the planner takes it that LAST(R.v, 1) never is.
        Schema schema =
                Schema.newBuilder()
                        .column("sn", "BIGINT NOT NULL")
                        .column("key", "STRING")
                        .column("type", "STRING")
                        .column("v", "DOUBLE")
                        .column("w", "BIGINT NOT NULL")
                        .columnByMetadata("rowtime", "TIMESTAMP_LTZ(3)")
                        .watermark("rowtime", "SOURCE_WATERMARK()")
                        .build();
        tables.createTemporaryView("log", log, schema);
        return tables.toDataStream(tables.sqlQuery(job.get("sql").asText())).map(new RowHash(job.get("steps").size())).returns(Types.LONG);
    }

    /** Columns y, s0, s1, ..: the window, and the SNs of each symbol, comma-separated where there may be several. */
    private static final class RowHash extends RichMapFunction<Row, Long> {
        private final int symbols;

        RowHash(int symbols) {
            this.symbols = symbols;
        }

        @Override
        public Long map(Row row) {
            List<Long> sns = new ArrayList<>();
            for (int i = 0; i < symbols; i++) {
                Object bound = row.getField("s" + i);
                if (bound instanceof Long) {
                    sns.add((Long) bound);
                } else {
                    for (String sn : bound.toString().split(",")) {
                        sns.add(Long.parseLong(sn));
                    }
                }
            }
            return hash((Long) row.getField("y"), sns);
        }
    }

    // Events

    /** One row of the log. `w` is the number of the window it was copied for; 1 without windows. */
    public static final class Event {
        public long sn;
        public long ts;
        public String key;
        public String type;
        public double v;
        public long w = 1;
    }

    /** Flink's patterns know no windows that overlap: every event is copied into all of its own. */
    private static final class Windows implements FlatMapFunction<Event, Event> {
        private final long size;
        private final long slide;

        Windows(long size, long slide) {
            this.size = size;
            this.slide = slide;
        }

        @Override
        public void flatMap(Event event, Collector<Event> out) {
            long position = event.sn - 1;
            long first = Math.max(1, Math.floorDiv(position - size, slide) + 2);
            for (long w = first; w <= position / slide + 1; w++) {
                Event copy = new Event();
                copy.sn = event.sn;
                copy.ts = event.ts;
                copy.key = event.key;
                copy.type = event.type;
                copy.v = event.v;
                copy.w = w;
                out.collect(copy);
            }
        }
    }

    /** Each task reads the buckets whose number falls to it, in the order of their SNs, up to an SN. */
    private static final class LogSource extends RichParallelSourceFunction<Event> implements CheckpointedFunction {
        private final String job;
        private final long until;
        private long lastSn;
        private long count;
        private transient ListState<long[]> saved;
        private volatile boolean running = true;

        LogSource(String job, long until) {
            this.job = job;
            this.until = until;
        }

        @Override
        public void open(OpenContext context) {
            BEGAN.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void run(SourceContext<Event> out) throws Exception {
            JsonNode spec = new ObjectMapper().readTree(job);
            boolean reports = spec.has("checkpoints");
            int task = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            if (reports) {
                say("from " + task + " " + lastSn + " " + count);
            }
            for (JsonNode files : spec.get("commits")) {
                List<LogFile> mine = mine(files, spec.get("with_v").asBoolean());
                for (LogFile next = first(mine); next != null && next.sn <= until && running; next = first(mine)) {
                    awaitOthers(task, next.sn);
                    synchronized (out.getCheckpointLock()) {
                        for (int i = 0; i < EVENTS_PER_WATERMARK && next != null && next.sn <= until; i++) {
                            Event event = next.event();
                            out.collectWithTimestamp(event, event.ts);
                            lastSn = event.sn;
                            count++;
                            next.advance();
                            next = first(mine);
                            if (reports && count % EVENTS_PER_REPORT == 0) {
                                say("read " + task + " " + lastSn + " " + count);
                            }
                        }
                        out.emitWatermark(new Watermark(timeOf(lastSn, spec)));
                    }
                }
                for (LogFile file : mine) {
                    file.close();
                }
            }
            reached.set(task, Long.MAX_VALUE);
            if (reports) {
                say("read " + task + " " + lastSn + " " + count);
            }
        }

        /** What Flink calls watermark alignment, which sources of this kind have to bring themselves. */
        private void awaitOthers(int task, long sn) {
            AtomicLongArray all = reached;
            all.set(task, sn);
            for (int other = 0; other < all.length(); other++) {
                while (running && sn - AHEAD > all.get(other)) {
                    LockSupport.parkNanos(20_000);
                }
            }
        }

        private static long timeOf(long sn, JsonNode spec) {
            return spec.get("begin_ms").asLong() + sn;
        }

        private List<LogFile> mine(JsonNode files, boolean withV) throws IOException {
            int tasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            int task = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            List<LogFile> mine = new ArrayList<>();
            for (int bucket = task; bucket < files.size(); bucket += tasks) {
                mine.add(new LogFile(files.get(bucket).asText(), withV, lastSn));
            }
            return mine;
        }

        private static LogFile first(List<LogFile> files) {
            LogFile first = null;
            for (LogFile file : files) {
                if (!file.over && (first == null || file.sn < first.sn)) {
                    first = file;
                }
            }
            return first;
        }

        @Override
        public void cancel() {
            running = false;
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            int task = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            saved.update(List.of(new long[] {task, lastSn, count}));
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            TypeInformation<long[]> type = TypeInformation.of(long[].class);
            saved = context.getOperatorStateStore().getUnionListState(new ListStateDescriptor<>("read", type));
            for (long[] one : saved.get()) {
                if (one[0] == getRuntimeContext().getTaskInfo().getIndexOfThisSubtask()) {
                    lastSn = one[1];
                    count = one[2];
                }
            }
        }
    }

    /** One file of the log, column by column, from the first event after an SN. Text is coded; each text is decoded once. */
    private static final class LogFile {
        private final ParquetFileReader file;
        private final MessageType columns;
        private final String createdBy;
        private final long after;
        private final boolean withV;
        private int group;
        private long left;
        private ColumnReader sns;
        private ColumnReader times;
        private ColumnReader types;
        private ColumnReader keys;
        private ColumnReader vs;
        private final Texts typeTexts = new Texts();
        private final Texts keyTexts = new Texts();
        long sn;
        boolean over;

        LogFile(String path, boolean withV, long after) throws IOException {
            this.after = after;
            this.withV = withV;
            file = ParquetFileReader.open(new LocalInputFile(Path.of(path)));
            MessageType all = file.getFooter().getFileMetaData().getSchema();
            createdBy = file.getFooter().getFileMetaData().getCreatedBy();
            List<org.apache.parquet.schema.Type> wanted = new ArrayList<>();
            for (String name : withV ? List.of("sn", "stream_ts", "type", "key", "v") : List.of("sn", "stream_ts", "type", "key")) {
                wanted.add(all.getType(name));
            }
            columns = new MessageType("events", wanted);
            file.setRequestedSchema(columns);
            do {
                advance();
            } while (!over && sn <= after);
        }

        void advance() throws IOException {
            if (left > 0) {
                sns.consume();
                times.consume();
                types.consume();
                keys.consume();
                if (withV) {
                    vs.consume();
                }
                left--;
            }
            while (left == 0) {
                if (!nextGroup()) {
                    over = true;
                    return;
                }
            }
            sn = sns.getLong();
        }

        private boolean nextGroup() throws IOException {
            while (group < file.getRowGroups().size() && lastSn(file.getRowGroups().get(group)) <= after) {
                file.skipNextRowGroup();
                group++;
            }
            PageReadStore pages = file.readNextRowGroup();
            group++;
            if (pages == null) {
                return false;
            }
            ColumnReadStoreImpl store = new ColumnReadStoreImpl(pages, new Columns(typeTexts, keyTexts), columns, createdBy);
            sns = reader(store, "sn");
            times = reader(store, "stream_ts");
            types = reader(store, "type");
            keys = reader(store, "key");
            vs = withV ? reader(store, "v") : null;
            left = pages.getRowCount();
            return true;
        }

        private static long lastSn(BlockMetaData group) {
            for (ColumnChunkMetaData column : group.getColumns()) {
                if (column.getPath().toDotString().equals("sn")) {
                    return ((Number) column.getStatistics().genericGetMax()).longValue();
                }
            }
            throw new IllegalStateException("a log without SNs");
        }

        private ColumnReader reader(ColumnReadStoreImpl store, String name) {
            return store.getColumnReader(columns.getColumnDescription(new String[] {name}));
        }

        Event event() {
            Event event = new Event();
            event.sn = sn;
            event.ts = times.getLong() / 1000;
            event.type = typeTexts.texts[types.getCurrentValueDictionaryID()];
            event.key = keyTexts.texts[keys.getCurrentValueDictionaryID()];
            event.v = withV ? vs.getDouble() : 0;
            return event;
        }

        void close() throws IOException {
            file.close();
        }
    }

    /** What Parquet's column readers ask for: who takes the dictionaries of coded columns. The order is that of LogFile. */
    private static final class Columns extends GroupConverter {
        private final Converter[] converters;

        Columns(Texts types, Texts keys) {
            converters = new Converter[] {new PrimitiveConverter() {}, new PrimitiveConverter() {}, types, keys, new PrimitiveConverter() {}};
        }

        @Override
        public Converter getConverter(int field) {
            return converters[field];
        }

        @Override
        public void start() {}

        @Override
        public void end() {}
    }

    /** The texts of one row group, by their codes. */
    private static final class Texts extends PrimitiveConverter {
        String[] texts = {};

        @Override
        public boolean hasDictionarySupport() {
            return true;
        }

        @Override
        public void setDictionary(Dictionary dictionary) {
            texts = new String[dictionary.getMaxId() + 1];
            for (int code = 0; code < texts.length; code++) {
                texts[code] = dictionary.decodeToBinary(code).toStringUsingUTF8();
            }
        }
    }
}
