--[[
Slurm's burst_buffer/lua for bivouac: #BB_LUA bivouac WORD=VALUE... in a job script. docs/slurm.md has the words.

The controller does nothing but look at the words when the job is submitted, hand them on in the job's comment, and tell
the job where its file system will be. It is formed, filled, emptied and taken down by prolog and epilog on the job's
nodes: only these know where it can be, and nodes are given to the next job before the stages after the job have run.

To be put beside slurm.conf. Arguments differ between releases of Slurm, so those that are not needed are not named.
]]

local DIRECTIVE = "^#BB_LUA%s+bivouac%s*(.*)$"
-- Slurm takes comments of 1,024 bytes.
local LENGTH_MAX = 1000
-- Nothing that a shell, or whoever reads a comment, takes for anything but itself.
local PLAIN = "^[%w%._/:=%%,@%+~%-]+$"

local WORDS = {
    capacity = "^%d[%d%.]*[kKmMgGtTpP]?i?[bB]?$",
    -- Slurm wants one wherever it reads "capacity=".
    pool = { bivouac = true },
    volume = { memory = true, disk = true },
    secure = { yes = true, no = true },
    mount = "^/.",
    nodes_per_host = "^[1-9]%d*$",
    stripe = "^%d+[kKmMgG]?i?[bB]?$",
    width = "^%d+$",
    stage_in = "^[^:]+:?[^:]*$",
    stage_out = "^[^:]+:[^:]+$",
}

local function is_good(name, value)
    local wanted = WORDS[name]
    if type(wanted) == "table" then
        return wanted[value]
    end
    return wanted and value:match(wanted)
end

-- The words of a job script, one string; nil if there are none, or nil and what is wrong with them. Slurm replaces %j, %u
-- and the like in directives, and %% by %: raw is a script in which it has not done so yet.
local function read_words(path, raw)
    local file = io.open(path)
    if not file then
        return nil, "bivouac: the job script cannot be read by the controller"
    end
    local words, found = { "bivouac" }, false
    for line in file:lines() do
        local rest = line:gsub("\r$", ""):match(DIRECTIVE)
        for word in (rest or ""):gmatch("%S+") do
            local name, value = word:match("^([%w_]+)=(.+)$")
            if not word:match(PLAIN) or (raw and word:gsub("%%%%", ""):match("%%%x%x")) then
                file:close()
                return nil, "bivouac: '" .. word .. "': write %%20 for a space, and so on for other unusual characters"
            end
            if not name or not is_good(name, value) then
                file:close()
                return nil, "bivouac: '" .. word .. "' is not understood; docs/slurm.md has the words and their values"
            end
            words[#words + 1] = word
        end
        found = found or rest ~= nil
    end
    file:close()
    local text = table.concat(words, " ")
    if #text > LENGTH_MAX then
        return nil, "bivouac: the directives are longer than " .. LENGTH_MAX .. " bytes; name directories, not files"
    end
    return found and text or nil
end

local function quote(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

local function output_of(command)
    local pipe = io.popen(command)
    local line = pipe and pipe:read("*l")
    if pipe then
        pipe:close()
    end
    return line
end

-- Submission. Called with locks held: reads the script, and nothing else.
function slurm_bb_job_process(job_script)
    local _, trouble = read_words(job_script, true)
    if trouble then
        slurm.log_info("%s", trouble)
        return slurm.ERROR, trouble
    end
    return slurm.SUCCESS
end

-- The job is there and waits. What the user wrote into the comment stays in front.
function slurm_bb_setup(job_id, ...)
    local script
    for _, argument in ipairs({ ... }) do
        if type(argument) == "string" and argument:match("^/") then
            script = argument
        end
    end
    local words, trouble = read_words(script or "")
    if not words then
        return trouble and slurm.ERROR or slurm.SUCCESS, trouble
    end
    local comment = output_of("squeue --noheader --format=%k --jobs=" .. job_id)
    if comment and comment:find(words, 1, true) then
        return slurm.SUCCESS -- the job was queued again
    end
    if comment and comment ~= "" and comment ~= "(null)" then
        words = comment .. "; " .. words
    end
    local failed = os.execute("scontrol update JobId=" .. job_id .. " Comment=" .. quote(words))
    if failed ~= 0 and failed ~= true then
        return slurm.ERROR, "bivouac: the job's comment could not be set"
    end
    return slurm.SUCCESS
end

-- Environment of the job: as prolog writes it down.
function slurm_bb_paths(job_id, job_script, path_file)
    local words = read_words(job_script)
    if not words then
        return slurm.SUCCESS
    end
    local place, name = "/run/bivouac/" .. job_id, "job-" .. job_id
    local file, trouble = io.open(path_file, "w")
    if not file then
        return slurm.ERROR, "bivouac: " .. trouble
    end
    file:write("BIVOUAC=", words:match("mount=(%S+)") or place .. "/mnt", "\n")
    file:write("BIVOUAC_NAME=", name, "\n")
    file:write("BIVOUAC_DIR=", place, "/run/bivouac/", name, "\n")
    file:write("BIVOUAC_RUNTIME_DIR=", place, "/run\n")
    file:close()
    return slurm.SUCCESS
end

-- Space is each node's own, and it is prolog that looks whether there is enough: so this pool is no limit.
function slurm_bb_pools()
    return slurm.SUCCESS, '{ "pools": [ { "id": "bivouac", "quantity": 1125899906842624, "granularity": 1 } ] }'
end

-- What other burst buffers do here is done by prolog and epilog.
function slurm_bb_job_teardown()
    return slurm.SUCCESS
end

function slurm_bb_data_in()
    return slurm.SUCCESS
end

function slurm_bb_real_size()
    return slurm.SUCCESS
end

function slurm_bb_test_data_in()
    return slurm.SUCCESS
end

function slurm_bb_pre_run()
    return slurm.SUCCESS
end

function slurm_bb_post_run()
    return slurm.SUCCESS
end

function slurm_bb_data_out()
    return slurm.SUCCESS
end

function slurm_bb_test_data_out()
    return slurm.SUCCESS
end

-- For: scontrol show bbstat
function slurm_bb_get_status()
    return slurm.SUCCESS, "bivouac: on a job's first node: BIVOUAC_RUNTIME_DIR=/run/bivouac/JOB/run bivouac status\n"
end
